"""A contest: every algorithm on every data set, split and epsilon, and the ranks of what they scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from shoal.errors import SettingsError
from shoal.evaluation.contestants import PUBLISHED, contestants
from shoal.evaluation.experiment import Setting
from shoal.evaluation.experiments.ranks import (
    EXPERIMENT,
    FORM,
    NOISE_TRIALS,
    TRIALS,
    Comparison,
    Scope,
    comparisons,
    complete,
    rank_results,
    ranking,
    scopes,
)
from shoal.evaluation.planning import Options, plan
from shoal.evaluation.published_ranks import EPSILONS
from shoal.evaluation.ranking import Ranking
from shoal.evaluation.results import Result
from shoal.evaluation.scores import SCORES
from shoal.evaluation.study import Table
from shoal.evaluation.trial_store import TrialStore
from shoal.evaluation.trials import run_trials

PAPERS: Final = "the paper's"
ALL: Final = "all"
SHARED: Final = "all, shared data"
"""names of the groups in which algorithms are ranked"""
ALL_EPSILONS: tuple[float | None, ...] = (None, *EPSILONS)


@dataclass(frozen=True)
class Contest:
    """What is ranked: which algorithms, on which data, and how often."""

    data: Path | None
    datasets: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    epsilons: tuple[float | None, ...] = ALL_EPSILONS
    measures: tuple[str, ...] = SCORES
    trials: int = TRIALS
    noise_trials: int = NOISE_TRIALS
    jobs: int = 1
    resume: Path | None = None


@dataclass(frozen=True)
class Group:
    """Algorithms that are ranked together."""

    name: str
    members: Sequence[str]
    found: Sequence[Comparison]
    """those in which all of them have a score"""

    @property
    def scopes(self) -> list[Scope]:
        """Which of the comparisons are ranked together."""
        return scopes(dict.fromkeys(each.epsilon for each in self.found))

    @property
    def datasets(self) -> list[str]:
        """The data sets of the comparisons."""
        return list(dict.fromkeys(each.dataset for each in self.found))


@dataclass(frozen=True)
class Ranks:
    """The outcome of a contest."""

    found: Sequence[Comparison]
    groups: Sequence[Group]
    """the paper's algorithms if all of them ran; all with a score everywhere; and all, where all have a score"""
    left_out: Sequence[str]
    """algorithms without a score somewhere"""
    results: Sequence[Result]
    """of each group, best first"""
    tests: Sequence[dict[str, Any]]
    """of each group of algorithms and scope"""


def run_contest(contest: Contest) -> Ranks:
    """Run every trial that is not done yet, and rank the means. Raises `SettingsError`, `InvalidData`."""
    installed = contestants()
    unknown = [name for name in contest.algorithms if name not in installed]
    if unknown:
        raise SettingsError(f"no algorithm {unknown[0]!r} to rank; there are: {', '.join(installed)}")
    names = contest.algorithms or tuple(installed)
    settings = _settings(contest, names)
    store = TrialStore(contest.resume)
    done = [
        result
        for noise, trials in ((False, contest.trials), (True, contest.noise_trials))
        for result in run_trials(
            EXPERIMENT,
            [setting for setting in settings if (setting.epsilon is not None) is noise],
            trials,
            contest.jobs,
            store,
        )
    ]
    settings = sorted(settings, key=lambda setting: setting.epsilon is not None)
    trials = contest.trials if None in contest.epsilons else contest.noise_trials
    found = comparisons(list(zip(settings, done, strict=True)), contest.measures)
    groups = groups_of(found, names)
    results = [
        result
        for group in groups
        for result in rank_results(
            group.name, group.found, group.members, trials, compared=set(group.members) == set(PUBLISHED)
        )
    ]
    tests = [_test(group, scope) for group in groups for scope in group.scopes]
    ranked = complete(found, names)
    return Ranks(found, groups, [name for name in names if name not in ranked], results, tests)


def groups_of(found: Sequence[Comparison], names: Sequence[str]) -> list[Group]:
    """The groups in which these algorithms are ranked. One that does not take all of the data is in the last one."""
    ranked = complete(found, names)
    shared = [each for each in found if all(name in each.values for name in names)]
    groups = []
    if set(PUBLISHED) <= set(ranked):
        groups.append(Group(PAPERS, list(PUBLISHED), found))
    if set(ranked) != set(PUBLISHED) and (len(ranked) > 1 or not shared):
        groups.append(Group(ALL, ranked, found))
    if shared and len(ranked) < len(names):
        groups.append(Group(SHARED, names, shared))
    return groups


def _settings(contest: Contest, names: Sequence[str]) -> list[Setting]:
    """Small data sets first, and without noise first: what is most wanted is done first."""
    options = Options(
        data=contest.data,
        names=contest.datasets,
        trials=contest.trials,
        split="both",
        epsilon=None,
        clients=None,
        fill="refuse",
        jobs=contest.jobs,
        as_json=False,
        check=False,
    )
    planned = plan(replace(EXPERIMENT, variants=tuple((("algorithm", name),) for name in names)), options)
    if planned.errors:
        raise planned.errors[0]
    return [replace(setting, epsilon=epsilon) for epsilon in contest.epsilons for setting in planned.settings]


def _test(group: Group, scope: Scope) -> dict[str, Any]:
    ranked = ranking(group.found, scope, group.members)
    best = min(group.members, key=ranked.of)
    return {
        "among": group.name,
        "scope": scope.name,
        "comparisons": ranked.comparisons,
        "friedman_p": None if math.isnan(ranked.friedman_p) else ranked.friedman_p,
        "critical_difference": ranked.critical_difference,
        "best": best,
        "significantly_worse": [name for name in group.members if ranked.differ(best, name)],
    }


def rankings(outcome: Ranks) -> dict[str, Ranking]:
    """Title -> the ranking of all algorithms, for each scope; what the picture shows.

    Last, if some do not take all of the data, the ranking on what all take.
    """
    found: dict[str, Ranking] = {}
    whole = ALL if any(group.name == ALL for group in outcome.groups) else PAPERS
    for group in outcome.groups:
        if group.name == whole:
            found |= {scope.name: ranking(group.found, scope, group.members) for scope in group.scopes}
        elif group.name == SHARED:
            last = group.scopes[-1]
            found[f"{last.name}, {', '.join(group.datasets)}"] = ranking(group.found, last, group.members)
    return found


def tables(outcome: Ranks, leave_out: str | None = None) -> list[Table]:
    """One table for each group but `leave_out`: mean ranks; above it, what the tests say."""
    return [
        Table(
            [result for result in outcome.results if result.keys["among"] == group.name],
            dict.fromkeys(next(iter(outcome.results)).measured, FORM),
            _explained(group, outcome),
        )
        for group in outcome.groups
        if group.name != leave_out
    ]


def _explained(group: Group, outcome: Ranks) -> str:
    where = ", ".join(group.datasets)
    lines = [f"Mean ranks among {group.name} ({', '.join(group.members)}) on {where}; 1 is best.", ""]
    for test in outcome.tests:
        if test["among"] != group.name:
            continue
        p = "-" if test["friedman_p"] is None else f"{test['friedman_p']:.2g}"
        worse = ", ".join(test["significantly_worse"]) or "none"
        lines.append(
            f"- {test['scope']}: {test['comparisons']} comparisons, Friedman p = {p}, critical difference "
            f"{test['critical_difference']:.2f}; significantly worse than {test['best']}: {worse}."
        )
    left_out = [name for name in outcome.left_out if name not in group.members]
    if group.name == ALL and left_out:
        lines.append(f"- Not ranked, because they do not take all of the data: {', '.join(left_out)}.")
    return "\n".join(lines)
