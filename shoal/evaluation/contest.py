"""A contest: every algorithm on every data set, split and epsilon, and the ranks of what they scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
class Ranks:
    """The outcome of a contest."""

    found: Sequence[Comparison]
    groups: Mapping[str, Sequence[str]]
    """the algorithms that are ranked together: the paper's if all of them ran, and all with a score everywhere"""
    left_out: Sequence[str]
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
    ranked = complete(found, names)
    groups = {"all": ranked}
    if set(PUBLISHED) <= set(ranked) and len(ranked) > len(PUBLISHED):
        groups = {"the paper's": list(PUBLISHED), **groups}
    results = [
        result
        for group, members in groups.items()
        for result in rank_results(group, found, members, trials, compared=set(members) == set(PUBLISHED))
    ]
    tests = [
        _test(group, found, members, scope)
        for group, members in groups.items()
        for scope in scopes(dict.fromkeys(each.epsilon for each in found))
    ]
    return Ranks(found, groups, [name for name in names if name not in ranked], results, tests)


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


def _test(group: str, found: Sequence[Comparison], names: Sequence[str], scope: Scope) -> dict[str, Any]:
    ranked = ranking(found, scope, names)
    best = min(names, key=ranked.of)
    return {
        "among": group,
        "scope": scope.name,
        "comparisons": ranked.comparisons,
        "friedman_p": None if math.isnan(ranked.friedman_p) else ranked.friedman_p,
        "critical_difference": ranked.critical_difference,
        "best": best,
        "significantly_worse": [name for name in names if ranked.differ(best, name)],
    }


def rankings(outcome: Ranks) -> dict[str, Ranking]:
    """Title -> the ranking among all algorithms, for each scope; what the picture shows."""
    members = outcome.groups["all"]
    found = scopes(dict.fromkeys(each.epsilon for each in outcome.found))
    return {scope.name: ranking(outcome.found, scope, members) for scope in found}


def tables(outcome: Ranks) -> list[Table]:
    """One table for each group: mean ranks; above it, what the tests say."""
    return [
        Table(
            [result for result in outcome.results if result.keys["among"] == group],
            dict.fromkeys(next(iter(outcome.results)).measured, FORM),
            _explained(group, outcome),
        )
        for group in outcome.groups
    ]


def _explained(group: str, outcome: Ranks) -> str:
    lines = [f"Mean ranks among {group} ({', '.join(outcome.groups[group])}); 1 is best.", ""]
    for test in outcome.tests:
        if test["among"] != group:
            continue
        p = "-" if test["friedman_p"] is None else f"{test['friedman_p']:.2g}"
        worse = ", ".join(test["significantly_worse"]) or "none"
        lines.append(
            f"- {test['scope']}: {test['comparisons']} comparisons, Friedman p = {p}, critical difference "
            f"{test['critical_difference']:.2f}; significantly worse than {test['best']}: {worse}."
        )
    if outcome.left_out:
        lines.append(f"- Not ranked, because they do not take all of the data: {', '.join(outcome.left_out)}.")
    return "\n".join(lines)
