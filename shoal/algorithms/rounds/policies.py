"""Which answers count for the next parameters, and for how much: the same choices for every
algorithm in rounds.

With all clients in every round, `fresh` is the pooled algorithm. On a stream, where few clients
answer each round and each holds rows of other clusters, the answers of one round alone lose the
clusters of absent clients: `decay` and `cache` keep earlier answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Final

from shoal.algorithms.options import Options
from shoal.algorithms.rounds.base import Params, RoundsAlgorithm, Stats
from shoal.algorithms.rounds.robust import METHODS, RobustForm, combine_robustly
from shoal.errors import SettingsError
from shoal.saved_state import NamedArrays, SavedState, require

KINDS: Final = ("fresh", "decay", "cache")


@dataclass(frozen=True)
class Policy:
    """How answers of earlier rounds count. Raises `SettingsError`.

    The fields have the names of the settings in `[models.rounds]`, where `kind` is called
    `between`.
    """

    kind: str = "fresh"
    """`fresh`: only the answers of this round; `decay`: also the decayed sum of earlier ones;
    `cache`: the last answer of each client"""
    decay: float = 0.5
    """decay: factor by which the sum of earlier answers, and a late answer, are multiplied per
    round"""
    cache_rounds: int = 8
    """cache: rounds after which a client's last answer no longer counts"""
    late_rounds: int = 3
    """rounds by which an answer may be late and still count"""
    robust: str = "none"
    """combination of the answers of a round: one of `shoal.algorithms.rounds.robust.METHODS`"""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError(f"policy {self.kind!r}, must be one of {', '.join(KINDS)}")
        if self.robust not in METHODS:
            raise SettingsError(f"robust = {self.robust!r}, must be one of {', '.join(METHODS)}")
        if not 0 < self.decay < 1:
            raise SettingsError(f"decay = {self.decay!r}, must be above 0 and below 1")
        for name, value in (("cache_rounds", self.cache_rounds), ("late_rounds", self.late_rounds)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingsError(f"{name} = {value!r}, must be a whole number, at least 0")

    def check(self, algorithm: RoundsAlgorithm, options: Options | None = None) -> None:
        """Raises `SettingsError` for `decay` with an algorithm whose answers cannot be added up,
        and for a robust combination of answers that cannot be combined so."""
        if self.robust != "none":
            form = algorithm.robust
            reason = form if isinstance(form, str) else form.refuses(options or {})
            if reason:
                raise SettingsError(
                    f'robust = "{self.robust}" does not go with {algorithm.name}: {reason}; '
                    "leave it out"
                )
        if self.kind == "decay" and not algorithm.additive:
            raise SettingsError(
                f"the answers of {algorithm.name} are not sums and cannot decay; "
                "choose fresh or cache"
            )


@dataclass(frozen=True)
class Answer(SavedState):
    """One client's answer to the request of one round."""

    client: str
    round: int
    stats: Annotated[Stats, NamedArrays()]


@dataclass(frozen=True)
class PolicyState(SavedState):
    """Memory of a policy from round to round, which is its saved state too."""

    version: ClassVar[int] = 1

    newest_answered: dict[str, int] = field(default_factory=dict)
    """the newest round that each client has answered; a repeated answer does not count twice"""
    sums: Annotated[Stats | None, NamedArrays()] = None
    """decay: the decayed sum of all answers so far"""
    cached: dict[str, Answer] = field(default_factory=dict)
    """cache: by client, its last answer"""

    def check(self) -> None:
        for client, answer in self.cached.items():
            require(answer.client == client, "an answer is cached for another client")

    def without(self, client: str) -> PolicyState:
        """State without anything of this client.

        A sum of answers cannot be taken apart, so it begins anew if the client has ever answered.
        """
        newest_answered = dict(self.newest_answered)
        cached = dict(self.cached)
        sums = self.sums
        # Also of a client whose answer has decayed to nearly nothing: what was quarantined must
        # leave no trace.
        if newest_answered.pop(client, None) is not None:
            sums = None
        cached.pop(client, None)
        return PolicyState(newest_answered, sums, cached)

    def without_earlier_answers(self) -> PolicyState:
        """The state in which no answer counts again, for a new epoch; which answers are new is
        still known."""
        return PolicyState(self.newest_answered)

    @cached_property
    def cached_bytes(self) -> int:
        """Size of the arrays of the cached answers."""
        size = 0
        for answer in self.cached.values():
            size += sum(array.nbytes for array in answer.stats.values())
        return size


def select_answers(
    policy: Policy,
    state: PolicyState,
    answers: Sequence[Answer],
    round_number: int,
    robust: RobustForm | str = "",
) -> tuple[PolicyState, list[Stats]]:
    """The answers received in round `round_number` -> the next state, and the statistics to
    combine.

    With a robust policy and the algorithm's form `robust`, the answers of a round count as one that
    stands for all. Late answers to earlier rounds may be among them. The order of `answers` does
    not change a bit of the result: they are taken in the order of the clients' names. Of several
    answers of one client the one to the newest round counts; one to a round not newer than the
    client's newest, or more than `late_rounds` behind, does not.
    """
    newest = _newest_answers(policy, state, answers, round_number)
    newest_answered = dict(state.newest_answered)
    for client, answer in newest.items():
        newest_answered[client] = answer.round
    if policy.kind == "fresh":
        counted = _combined(policy, robust, [answer.stats for answer in newest.values()])
        return PolicyState(newest_answered), counted
    if policy.kind == "decay":
        sums = _decayed_sum(policy, robust, state.sums, newest.values(), round_number)
        counted = []
        if sums is not None:
            counted.append(sums)
        return PolicyState(newest_answered, sums=sums), counted
    known = {**state.cached, **newest}
    # A client that is gone for good must not hold the model where it was when it left.
    oldest = round_number - policy.cache_rounds
    # By name again: cached answers come first in a dictionary, whatever their clients are called.
    cached = {client: known[client] for client in sorted(known) if known[client].round >= oldest}
    counted = _combined(policy, robust, [answer.stats for answer in cached.values()])
    return PolicyState(newest_answered, cached=cached), counted


def _newest_answers(
    policy: Policy, state: PolicyState, answers: Sequence[Answer], round_number: int
) -> dict[str, Answer]:
    """The answers that are in time and new, one of each client, in the order of the clients' names.

    By name, because sums of floating-point numbers depend on the order, and the same log must give
    the same model twice.
    """
    newest: dict[str, Answer] = {}
    for answer in answers:
        if answer.client in newest:
            answered = newest[answer.client].round
        else:
            answered = state.newest_answered.get(answer.client, -1)
        in_time = round_number - policy.late_rounds <= answer.round <= round_number
        if in_time and answer.round > answered:
            newest[answer.client] = answer
    return dict(sorted(newest.items()))


def epoch_changed(algorithm: RoundsAlgorithm, before: Params, after: Params) -> bool:
    """Whether answers to the parameters `before` no longer count for those `after`."""
    return algorithm.epoch(before) != algorithm.epoch(after)


def _combined(policy: Policy, robust: RobustForm | str, answers: Sequence[Stats]) -> list[Stats]:
    """The answers that count: all, or the one that stands for all under a robust policy."""
    # A text is the reason for which the algorithm has no robust form.
    if isinstance(robust, str):
        return list(answers)
    return combine_robustly(robust, policy.robust, answers)


def _decayed_sum(
    policy: Policy,
    robust: RobustForm | str,
    sums: Stats | None,
    answers: Iterable[Answer],
    round_number: int,
) -> Stats | None:
    """The decayed sum of earlier answers and these; None as long as there has been none."""
    # One by one: copies of the answers of all clients would take as much memory as these have.
    faded: Iterable[Stats] = (
        _scaled(answer.stats, policy.decay ** (round_number - answer.round)) for answer in answers
    )
    if policy.robust != "none":
        faded = _combined(policy, robust, list(faded))
    # An answer that is late has decayed by the rounds it is late, as if it had come in time.
    total = None if sums is None else _scaled(sums, policy.decay)
    for stats in faded:
        if total is None:
            total = stats
        else:
            total = {name: array + stats[name] for name, array in total.items()}
    return total


def _scaled(stats: Stats, factor: float) -> Stats:
    return {name: factor * array for name, array in stats.items()}
