"""Which answers count for the next parameters, and for how much: the same choices for every algorithm in rounds.

With all clients in every round, `fresh` is the pooled algorithm. On a stream where few take part at a time and each
holds other clusters, a round's answers alone forget what the absent hold: `decay` and `cache` remember it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from shoal.algorithms.rounds.base import RoundsAlgorithm, Stats
from shoal.algorithms.state_reader import StateReader
from shoal.algorithms.streaming import State
from shoal.errors import InvalidState, SettingsError

KINDS: Final = ("fresh", "decay", "cache")
STATE_VERSION: Final = 1


@dataclass(frozen=True)
class Policy:
    """What to do between rounds. Raises `SettingsError`."""

    kind: str = "fresh"
    """`fresh`: this round's answers; `decay`: and what was summed before, at `rho`; `cache`: each client's last one"""
    rho: float = 0.5
    """decay: what one round leaves of the sums, and what one version of lateness leaves of an answer"""
    age_max: int = 8
    """cache: versions after which a client's last answer no longer counts"""
    late_max: int = 3
    """versions that an answer may be behind the call it meets"""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SettingsError(f"policy {self.kind!r}, must be one of {', '.join(KINDS)}")
        if not 0 < self.rho < 1:
            raise SettingsError(f"rho = {self.rho!r}, must be above 0 and below 1")
        for name, value in (("age_max", self.age_max), ("late_max", self.late_max)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise SettingsError(f"{name} = {value!r}, must be a whole number, at least 0")

    def check(self, algorithm: RoundsAlgorithm) -> None:
        """Raises `SettingsError` for decay where answers are no sums."""
        if self.kind == "decay" and not algorithm.additive:
            raise SettingsError(f"{algorithm.name} sends no sums, so they cannot decay; choose fresh or cache")


@dataclass(frozen=True)
class Answer:
    """One client's answer to the call of version `version`."""

    client: str
    version: int
    stats: Stats


@dataclass(frozen=True)
class Memory:
    """What a policy carries from round to round."""

    heard: Mapping[str, int] = field(default_factory=dict)
    """by client, the newest version it has answered: the same answer again is no second one"""
    sums: Stats | None = None
    """decay: what has been summed so far"""
    kept: Mapping[str, Answer] = field(default_factory=dict)
    """cache: by client, its last answer"""


def fold(policy: Policy, memory: Memory, answers: Sequence[Answer], version: int) -> tuple[Memory, list[Stats]]:
    """What came in for the call of `version`, late answers to earlier calls included -> memory, what to combine.

    The order in which answers came in is irrelevant to the bit: they are taken in the order of the clients' names.
    Of a client that answered several calls, the answer to the newest counts; one as old as what was heard before
    from this client, or more than `late_max` behind, does not.
    """
    newest: dict[str, Answer] = {}
    for answer in answers:
        usable = version - policy.late_max <= answer.version <= version
        known = newest[answer.client].version if answer.client in newest else memory.heard.get(answer.client, -1)
        if usable and answer.version > known:
            newest[answer.client] = answer
    fresh = [newest[client] for client in sorted(newest)]
    heard = {**memory.heard, **{answer.client: answer.version for answer in fresh}}
    if policy.kind == "fresh":
        return Memory(heard), [answer.stats for answer in fresh]
    if policy.kind == "decay":
        sums = _decayed(policy, memory.sums, fresh, version)
        return Memory(heard, sums=sums), [] if sums is None else [sums]
    kept = {**memory.kept, **newest}
    kept = {client: kept[client] for client in sorted(kept) if kept[client].version >= version - policy.age_max}
    return Memory(heard, kept=kept), [answer.stats for answer in kept.values()]


def _decayed(policy: Policy, sums: Stats | None, answers: Sequence[Answer], version: int) -> Stats | None:
    kept = None if sums is None else {name: policy.rho * array for name, array in sums.items()}
    for answer in answers:
        share = policy.rho ** (version - answer.version)
        weighed = {name: share * array for name, array in answer.stats.items()}
        kept = weighed if kept is None else {name: array + weighed[name] for name, array in kept.items()}
    return kept


# Saving, without pickle.


def state(memory: Memory) -> State:
    """As plain values and arrays, for `shoal.protocol.codec.pack`."""
    return {
        "version": STATE_VERSION,
        "heard": dict(memory.heard),
        "sums": None if memory.sums is None else dict(memory.sums),
        "kept": [[answer.client, answer.version, dict(answer.stats)] for answer in memory.kept.values()],
    }


def restored(saved: State) -> Memory:
    """The memory that `state` was made of. Raises `InvalidState`."""
    StateReader(saved, STATE_VERSION)
    heard, sums, kept = saved.get("heard"), saved.get("sums"), saved.get("kept")
    if not (isinstance(heard, dict) and all(_is_version(version) for version in heard.values())):
        raise InvalidState("heard must be versions by client")
    if not (sums is None or _is_arrays(sums)):
        raise InvalidState("sums must be named arrays")
    if not (isinstance(kept, list) and all(_is_kept(each) for each in kept)):
        raise InvalidState("kept must be answers, each of a client, a version and named arrays")
    return Memory(heard, sums, {client: Answer(client, version, stats) for client, version, stats in kept})


def _is_version(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_arrays(value: object) -> bool:
    return isinstance(value, dict) and all(_is_sound(array) for array in value.values())


def _is_sound(array: object) -> bool:
    return isinstance(array, np.ndarray) and bool(np.isfinite(array).all())


def _is_kept(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and isinstance(value[0], str)
        and _is_version(value[1])
        and _is_arrays(value[2])
    )
