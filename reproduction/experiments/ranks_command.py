"""`shoal reproduce ranks`: every algorithm on every data set, split and epsilon, and a picture of
the mean ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from reproduction import report
from reproduction.datasets import fcac_name
from reproduction.experiment import SCORES, Result, Setting, require_scikit_learn
from reproduction.experiments.contestants import PUBLISHED, contestants
from reproduction.experiments.ranks import (
    BAND,
    EXPERIMENT,
    FORM,
    NOISE_TRIALS,
    TEXT,
    TRIALS,
    Comparison,
    Ranking,
    Scope,
    as_printed,
    comparisons,
    complete,
    rank_results,
    ranking,
    scopes,
)
from reproduction.published import EPSILONS
from reproduction.report import Chapter, Picture, ReportOptions, Study, Table, require_matplotlib
from reproduction.trials_command import (
    Options,
    TrialStore,
    data_option,
    jobs_option,
    plan,
    resume_option,
    run_trials,
)
from shoal.errors import SettingsError

PAPERS: Final = "the paper's"
ALL: Final = "all"
SHARED: Final = "all, shared data"
"""names of the groups in which algorithms are ranked"""
ALL_EPSILONS: tuple[float | None, ...] = (None, *EPSILONS)


@dataclass(frozen=True)
class Contest:
    """Contents of a ranking: which algorithms, on which data, and how often."""

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
        return scopes(dict.fromkeys(comparison.epsilon for comparison in self.found))

    @property
    def datasets(self) -> list[str]:
        """The data sets of the comparisons."""
        return list(dict.fromkeys(comparison.dataset for comparison in self.found))


@dataclass(frozen=True)
class Ranks:
    """The outcome of a contest."""

    found: Sequence[Comparison]
    groups: Sequence[Group]
    """the paper's algorithms if all of them ran; all with a score everywhere; and all, where all
    have a score"""
    left_out: Sequence[str]
    """algorithms without a score somewhere"""
    results: Sequence[Result]
    """results of each group, best first"""
    tests: Sequence[dict[str, Any]]
    """tests of each group of algorithms and scope"""


def run_contest(contest: Contest) -> Ranks:
    """Run every trial that is not done yet, and rank the means. Raises `SettingsError`,
    `InvalidData`."""
    installed = contestants()
    unknown = [name for name in contest.algorithms if name not in installed]
    if unknown:
        raise SettingsError(
            f"no algorithm {unknown[0]!r} to rank; there are: {', '.join(installed)}"
        )
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
            group.name,
            group.found,
            group.members,
            trials,
            compared=set(group.members) == set(PUBLISHED),
        )
    ]
    tests = [_test(group, scope) for group in groups for scope in group.scopes]
    ranked = complete(found, names)
    return Ranks(found, groups, [name for name in names if name not in ranked], results, tests)


def groups_of(found: Sequence[Comparison], names: Sequence[str]) -> list[Group]:
    """The groups in which these algorithms are ranked. One that does not take all of the data is in
    the last one."""
    ranked = complete(found, names)
    shared = [
        comparison for comparison in found if all(name in comparison.values for name in names)
    ]
    groups = []
    if set(PUBLISHED) <= set(ranked):
        groups.append(Group(PAPERS, list(PUBLISHED), as_printed(found)))
    if set(ranked) != set(PUBLISHED) and (len(ranked) > 1 or not shared):
        groups.append(Group(ALL, ranked, found))
    if shared and len(ranked) < len(names):
        groups.append(Group(SHARED, names, shared))
    return groups


def _settings(contest: Contest, names: Sequence[str]) -> list[Setting]:
    """Small data sets first, and without noise first: what is most wanted is done first."""
    options = Options(contest.data, contest.datasets, contest.trials, contest.jobs)
    planned = plan(
        replace(EXPERIMENT, variants=tuple((("algorithm", name),) for name in names)), options
    )
    if planned.errors:
        raise planned.errors[0]
    return [
        replace(setting, epsilon=epsilon)
        for epsilon in contest.epsilons
        for setting in planned.settings
    ]


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
            found |= {
                scope.name: ranking(group.found, scope, group.members) for scope in group.scopes
            }
        elif group.name == SHARED:
            last = group.scopes[-1]
            found[f"{last.name}, {', '.join(group.datasets)}"] = ranking(
                group.found, last, group.members
            )
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
    lines = [
        f"Mean ranks among {group.name} ({', '.join(group.members)}) on {where}; 1 is best.",
        "",
    ]
    for test in outcome.tests:
        if test["among"] != group.name:
            continue
        p = "-" if test["friedman_p"] is None else f"{test['friedman_p']:.2g}"
        worse = ", ".join(test["significantly_worse"]) or "none"
        lines.append(
            f"- {test['scope']}: {test['comparisons']} comparisons, Friedman p = {p}, critical "
            f"difference {test['critical_difference']:.2f}; significantly worse than "
            f"{test['best']}: {worse}."
        )
    left_out = [name for name in outcome.left_out if name not in group.members]
    if group.name == ALL and left_out:
        lines.append(
            f"- Not ranked, because they do not take all of the data: {', '.join(left_out)}."
        )
    return "\n".join(lines)


LINE = 0.2
"""inches between two names"""
BAR = 0.13
"""inches between two bars"""


def draw_ranks(rankings: Mapping[str, Ranking], path: Path) -> None:
    """One diagram for each ranking, by its title; the suffix of `path` gives the format. Raises
    `MissingExtra`."""
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra that is needed for drawing only

    heights = [_height(ranking) for ranking in rankings.values()]
    figure = Figure(figsize=(7.5, sum(heights)), layout="constrained")
    axes = figure.subplots(len(rankings), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, height, (title, ranked) in zip(axes, heights, rankings.items(), strict=True):
        _draw(axis, height, title, ranked)
    figure.savefig(path, dpi=90)


def _height(ranking: Ranking) -> float:
    return 0.85 + BAR * len(ranking.groups()) + LINE * ((len(ranking.names) + 1) // 2)


def _draw(axis: Any, height: float, title: str, ranking: Ranking) -> None:
    """Best on the left. Lengths down the page are in inches, so that diagrams of all sizes have the
    same lines."""
    k = len(ranking.names)
    order = sorted(ranking.names, key=ranking.of)
    margin = 0.35 * (k - 1)
    axis.set(xlim=(1 - margin, k + margin), ylim=(-height + 0.5, 0.35))
    axis.axis("off")
    axis.set_title(f"{title}: {ranking.comparisons} comparisons", fontsize=9, loc="left")
    axis.plot([1, k], [0, 0], color="black", linewidth=1)
    for tick in range(1, k + 1):
        axis.plot([tick, tick], [0, 0.06], color="black", linewidth=1)
        axis.text(tick, 0.08, str(tick), ha="center", va="bottom", fontsize=8)
    reach = min(k - 1.0, ranking.critical_difference)
    axis.plot([k - reach, k], [0.3, 0.3], color="black", linewidth=2)
    axis.text(
        k + 0.05,
        0.3,
        f"critical difference {ranking.critical_difference:.2f}",
        va="center",
        fontsize=7,
    )
    for number, group in enumerate(ranking.groups(), start=1):
        ends = [ranking.of(group[0]) - 0.03, ranking.of(group[-1]) + 0.03]
        axis.plot(ends, [-BAR * number] * 2, color="#b03030", linewidth=3, solid_capstyle="butt")
    top = BAR * len(ranking.groups()) + 0.12
    for place, name in enumerate(order):
        left = place < (k + 1) // 2
        depth = -top - LINE * (place if left else k - 1 - place)
        end = 1 - 0.1 if left else k + 0.1
        axis.plot([ranking.of(name)] * 2 + [end], [0, depth, depth], color="#404040", linewidth=0.8)
        text = f"{name} {ranking.of(name):.2f}"
        axis.text(
            end,
            depth,
            f"{text} " if left else f" {text}",
            ha="right" if left else "left",
            va="center",
            fontsize=8,
        )


CAPTION: Final = (
    "Mean ranks; a bar joins algorithms whose ranks differ by less than the critical difference"
)
LARGE_DATASETS: Final = ("fashion_mnist",)
"""data sets on which the report has the paper's algorithms only; 70 000 rows of 784 features"""
NOISE_DATASETS: Final = ("hill_valley", "ozone", "phoneme", "optdigits")
"""data sets with noise in the report: the smaller ones, because noise is wanted at four levels"""
REPORT_TRIALS: Final = 2
"""trials of all algorithms in the report; most have no published ranks"""
REPORTED: Final = f"""\
The report ranks the paper's algorithms on all data that are in the folder; all algorithms in fewer
trials, and not on {", ".join(LARGE_DATASETS)}; and with the paper's Laplace noise on four of the
smaller data sets. What the paper shows with noise (figure 11) are diagrams without figures.
"""
PIECES: Final = """\
Everything takes hours on one core. `--published --check` runs all that has published ranks in
about twenty minutes, more than half of them on bioresponse; with `--dataset` it checks the mean
ranks on some of the data sets, in seconds on phoneme. Give --resume a file, and run the same
command again after a stop, or other parts: trials that are done count for all of them.
"""
QUICK_DATASETS: Final = ("hill_valley", "phoneme", "pendigits")


class _Epsilon(click.ParamType[float | None]):
    name = "epsilon"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        if value == "none":
            return None
        number = click.FloatRange(0, min_open=True).convert(value, param, ctx)
        return float(number)


def _parameters() -> list[click.Parameter]:
    return [
        data_option(),
        click.Option(
            ["--dataset", "datasets"],
            multiple=True,
            metavar="NAME",
            help="May be repeated; without it, the paper's.",
        ),
        click.Option(
            ["--algorithm", "algorithms"],
            multiple=True,
            metavar="NAME",
            help="May be repeated; without it, all.",
        ),
        click.Option(
            ["--epsilon", "epsilons"],
            type=_Epsilon(),
            multiple=True,
            help="The paper's Laplace noise, or none. May be repeated; without it none, 15, 25, "
            "50 and 75.",
        ),
        click.Option(
            ["--score", "measures"],
            type=click.Choice(SCORES),
            multiple=True,
            help="Without it, all three.",
        ),
        click.Option(["--trials"], type=click.IntRange(1), help=f"Without it, {TRIALS}."),
        click.Option(
            ["--noise-trials"],
            type=click.IntRange(1),
            default=NOISE_TRIALS,
            show_default=True,
            help="Trials of settings with noise.",
        ),
        click.Option(
            ["--published"],
            is_flag=True,
            help=f"Only what has published ranks: {', '.join(PUBLISHED)} without noise.",
        ),
        click.Option(
            ["--quick"], is_flag=True, help="Three small data sets without noise, one trial."
        ),
        jobs_option(),
        resume_option(),
        click.Option(
            ["--out"],
            type=click.Path(path_type=Path, dir_okay=False),
            help="Draw the mean ranks and critical differences into this file.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON instead of tables."),
        click.Option(
            ["--check"],
            is_flag=True,
            help=f"Exit with 1 if a mean rank is not within {BAND:g} deviations.",
        ),
    ]


def _ranks(**given: Any) -> None:
    quick = given["quick"]
    trials = given["trials"]
    out = given["out"]
    algorithms = given["algorithms"]
    epsilons = tuple(dict.fromkeys(given["epsilons"]))
    if given["published"]:
        if algorithms or epsilons:
            raise SettingsError(
                "--published chooses the algorithms and no noise; leave --algorithm and --epsilon"
                " out"
            )
        algorithms = tuple(PUBLISHED)
        epsilons = (None,)
    chosen = set(algorithms or PUBLISHED)
    if given["check"] and (quick or given["measures"] or not chosen >= set(PUBLISHED)):
        raise SettingsError(
            f"--check ranks {', '.join(PUBLISHED)} by all scores; leave --quick and --score out"
        )
    if out is not None and not out.parent.is_dir():
        raise SettingsError(f"{out}: no such folder to draw into")
    require_scikit_learn()
    if out is not None:
        require_matplotlib()
    contest = Contest(
        given["data"],
        given["datasets"] or (QUICK_DATASETS if quick else ()),
        algorithms,
        epsilons or ((None,) if quick else ALL_EPSILONS),
        given["measures"] or SCORES,
        trials or (1 if quick else TRIALS),
        given["noise_trials"],
        given["jobs"],
        given["resume"],
    )
    outcome = run_contest(contest)
    if given["as_json"]:
        rows = json.loads(report.as_json(outcome.results))["rows"]
        click.echo(
            json.dumps(
                {"rows": rows, "tests": outcome.tests, "left_out": outcome.left_out}, indent=2
            )
        )
    else:
        for table in tables(outcome):
            click.echo(f"{table.text}\n")
            report.show(table.results, table.formats)
            click.echo()
    if out is not None:
        draw_ranks(rankings(outcome), out)
        click.echo(f"drawn: {out}", err=True)
    if given["check"]:
        report.require_agreement(outcome.results, "a mean rank")


def _chapter(options: ReportOptions) -> Chapter:
    """The paper's algorithms on all data, all algorithms on all but the largest, and with noise on
    the smaller ones."""
    first = Contest(
        options.data,
        QUICK_DATASETS if options.quick else (),
        tuple(PUBLISHED),
        epsilons=(None,),
        trials=options.trials or (1 if options.quick else TRIALS),
        jobs=options.jobs,
        resume=options.store,
    )
    papers = run_contest(first)
    datasets = {comparison.dataset: fcac_name(comparison.dataset) for comparison in papers.found}
    every = run_contest(
        replace(
            first,
            datasets=tuple(name for name, known in datasets.items() if known not in LARGE_DATASETS),
            algorithms=(),
            trials=min(first.trials, REPORT_TRIALS),
        )
    )
    found = [*tables(papers), *tables(every, leave_out=PAPERS)]
    drawn = [
        _drawn(papers, options.out / "ranks-paper.png", "The paper's algorithms."),
        _drawn(every, options.out / "ranks.png", "All algorithms."),
    ]
    if not options.quick:
        small = tuple(name for name, known in datasets.items() if known in NOISE_DATASETS)
        noisy = run_contest(
            replace(first, datasets=small, algorithms=(), epsilons=EPSILONS, noise_trials=1)
        )
        found += [replace(table, text=f"With noise. {table.text}") for table in tables(noisy)]
        drawn.append(_drawn(noisy, options.out / "ranks-noise.png", "With noise."))
    return Chapter("ranks", EXPERIMENT.title, f"{TEXT}\n{REPORTED}", found, drawn)


def _drawn(outcome: Ranks, path: Path, what: str) -> Picture:
    draw_ranks(rankings(outcome), path)
    return Picture(path, f"{what} {CAPTION}")


STUDY: Final = Study(
    "ranks",
    EXPERIMENT.title,
    click.Command(
        "ranks",
        callback=_ranks,
        params=_parameters(),
        help=f"{EXPERIMENT.title}\n\n{PIECES}",
    ),
    _chapter,
    EXPERIMENT,
)
