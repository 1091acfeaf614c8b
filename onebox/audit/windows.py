"""The audit of whole windows: what a real client publishes of a window, attacked with the knowledge
of all but one reading of it, or of all but the readings of one user where a user is the privacy
unit.

The window goes through the client's readings log, its counter, its noise, its ledger and its
checkpoint. Everything published until the client is idle again is attacked together, so that a
second answer to a window counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from shoal.algorithms.counting import Counter
from shoal.config.resolved import ResolvedContract, ResolvedModel
from shoal.config.settings import Config
from shoal.kernels.arrays import Bools, Floats, Ints
from shoal.onebox.audit.attacks import counts_score
from shoal.onebox.audit.client import NAME, Altered, AuditedClient, in_folder, unaltered
from shoal.onebox.audit.statistics import (
    EventFinding,
    LossFinding,
    loss_from_scores,
    loss_from_statistic,
)
from shoal.protocol.codec import pack
from shoal.protocol.messages import Update
from shoal.protocol.readings import Reading
from shoal.transports.base import Headers

MIDDLE = (0.4, 0.6)
"""unit coordinates between which all readings of a window but the audited one lie"""
FIRST = 0.02
SECOND = 0.98
"""unit coordinates of the audited reading: both lie in cells that are empty otherwise"""
BEYOND = 3
"""readings that the audited user has above those that a window counts: they must have no effect"""
USERS_WINDOW = 20
"""least readings of a window, for each that a user may have in it, where the times of a user are
audited"""
USER = b"audited user"
Second = Literal["elsewhere", "rejected", "incomplete", "other times"]
CHANGED: Final[Mapping[Second, str]] = {
    "elsewhere": "moved",
    "rejected": "rejected",
    "incomplete": "without some values",
    "other times": "at the times of others",
}
"""difference of the audited unit between two windows, in words"""
REJECTED_SHARE = 0.3
"""share of the readings that are rejected where that must not show"""


class Neighbours(NamedTuple):
    """Two windows that differ in one privacy unit: one reading, or all readings of one user."""

    windows: tuple[Floats, Floats]
    """two windows (size, d), in unit coordinates"""
    users: list[bytes]
    """user ids (size,), the same in both"""
    counted: tuple[Bools, Bools]
    """whether (size,) each valid reading is counted in either window, by the privacy unit or by the
    fault looked for"""
    same_time_as: tuple[list[int], list[int]] = ([], [])
    """which reading each one has its time from, in either window; []: each has a time of its own"""


class CountsAttack:
    """What an attacker computes from public things alone: the counts of windows that may have been
    counted."""

    def __init__(self, contract: ResolvedContract, model: ResolvedModel) -> None:
        assert model.counts is not None
        self._counter: Counter = model.counts.algorithm.counter(model.options, contract.width)
        self._client = NAME.encode() + b"\0" + model.name.encode()
        self._width = contract.width
        self._epsilon = (model.epsilon or 0.0) / contract.mode.unit.readings_max

    def score(self, updates: Sequence[Update], neighbours: Neighbours) -> float:
        """The log-likelihood ratio of two windows, over all that was published of them."""
        return sum(self._score(update, neighbours) for update in updates)

    def public_part(self, update: Update) -> bytes:
        """All of an update but its counts: it must not depend on readings."""
        arrays = {
            name: values for name, values in update.arrays.items() if name not in self.count_names
        }
        return pack({**vars(update), "arrays": arrays})

    @cached_property
    def count_names(self) -> frozenset[str]:
        """The arrays of an update that hold counts: those that change with them."""
        counted = self._counter.count(
            np.empty((0, self._width)), np.empty(0, dtype=np.bool_), self._client, 0
        )
        # By trying: algorithms name their arrays as they like.
        before = counted.update(counted.counts)
        after = counted.update(counted.counts + 1)
        return frozenset(name for name in before if not np.array_equal(before[name], after[name]))

    def _score(self, update: Update, neighbours: Neighbours) -> float:
        published = np.concatenate([update.arrays[name] for name in sorted(self.count_names)])
        # Windows are counted from 0, updates from 1.
        number = update.sequence - 1
        windows = zip(neighbours.windows, neighbours.counted, strict=True)
        first, second = (self._true_counts(rows, counted, number) for rows, counted in windows)
        if published.shape != first.shape:
            return 0.0
        return counts_score(published, first, second, self._epsilon)

    def _true_counts(self, rows: Floats, counted: Bools, number: int) -> Ints:
        # A reading without any value is rejected; where contracts let no gaps be learnt, none has
        # some of them only.
        valid: Bools = np.asarray(np.isfinite(rows).any(axis=1)) & counted
        return self._counter.count(
            np.where(valid[:, None], rows, 0.0), valid, self._client, number
        ).counts


def audit_windows(
    config: Config,
    model: ResolvedModel,
    folder: Path,
    trials: int,
    generator: np.random.Generator,
    second: Second = "elsewhere",
) -> LossFinding:
    """Guess whether a privacy unit of a window was at one place, or `second`.

    `second` is elsewhere, or not a number at all, or without the first half of its values, or, for
    a user at a client that drops repeats, in the same place at other times: first its readings have
    the times of other users'. Every trial is one window of `window_readings` readings of a client
    in `folder`.
    """
    if second == "other times":
        config = _that_drops_repeats(config)
    audited = in_folder(config, folder, [model.declared])
    contract = audited.resolved
    bounds = contract.bounds
    unit = contract.mode.unit
    attack = CountsAttack(contract, model)
    was_first = generator.integers(0, 2, size=trials).astype(np.bool_)
    scores = np.empty(trials)
    with AuditedClient(audited) as client:
        _fill_first_window(client, contract)
        for trial in range(trials):
            neighbours = _neighbours(generator, contract, second)
            truth = 0 if was_first[trial] else 1
            updates = client.publish(
                bounds.from_unit(neighbours.windows[truth]),
                neighbours.users,
                neighbours.same_time_as[truth],
            )
            scores[trial] = attack.score(updates, neighbours)
    name = f"whole windows, one {unit.name} {CHANGED[second]}"
    return LossFinding(name, model.name, model.epsilon or 0.0, loss_from_scores(scores, was_first))


def audit_messages(
    config: Config, model: ResolvedModel, folder: Path, trials: int, generator: np.random.Generator
) -> list[LossFinding]:
    """Guess, by size and by processor time of what is published of a window, whether all its
    readings lay in one place.

    The other window has them all over the range. Counts are not looked at.
    """
    audited = in_folder(config, folder, [model.declared])
    contract = audited.resolved
    size = contract.contract.privacy.window_readings
    d = contract.width
    was_first = generator.integers(0, 2, size=trials).astype(np.bool_)
    sizes = np.empty(trials)
    seconds = np.empty(trials)
    with AuditedClient(audited) as client:
        _fill_first_window(client, contract)
        for trial in range(trials):
            # Drawn in every trial, so that drawing takes its time whichever window it is.
            window = generator.uniform(FIRST, SECOND, size=(size, d))
            if was_first[trial]:
                window = np.full((size, d), FIRST)
            client.publish(contract.bounds.from_unit(window))
            sizes[trial] = client.message_bytes
            seconds[trial] = client.step_s
    # Nothing of a window may show in them, so a window costs no more than one reading in it.
    declared = model.epsilon or 0.0
    return [
        LossFinding(
            f"{what} of messages", model.name, declared, loss_from_statistic(values, was_first)
        )
        for what, values in (("size", sizes), ("time", seconds))
    ]


def audit_rejected(
    config: Config, folder: Path, windows: int, generator: np.random.Generator
) -> EventFinding:
    """Whether anything but counts shows that readings are rejected: one of two clients has readings
    without a value.

    Where the contract lets gaps be learnt, the readings of a third one lack some values. All have
    as many readings, taken in by their logs at the same times. Compared are how many updates there
    are, and all of them but their counts: chance has no part in it.
    """
    counting = config.resolved.counted
    seen = []
    rows = generator.uniform(
        *MIDDLE, size=(windows * config.contract.privacy.window_readings, config.contract.width)
    )
    rejected = generator.random(len(rows)) < REJECTED_SHARE
    changed = {"valid": rows, "rejected": np.where(rejected[:, None], np.nan, rows)}
    if config.contract.learns_gaps:
        changed["incomplete"] = np.concatenate([changed["rejected"][:, :-1], rows[:, -1:]], axis=1)
    for name, values in changed.items():
        audited = in_folder(config, folder / name, [model.declared for model in counting])
        attacks = {model.name: CountsAttack(audited.resolved, model) for model in counting}
        with AuditedClient(audited) as client:
            updates = client.publish(audited.resolved.bounds.from_unit(values), apart=True)
        seen.append([attacks[update.model].public_part(update) for update in updates])
    # The longest of all: an update that one client has and another lacks differs too.
    different = sum(len(set(some)) > 1 for some in zip_longest(*seen))
    subject = ", ".join(model.name for model in counting)
    return EventFinding(
        "rejected readings",
        subject,
        len(seen[0]),
        "updates",
        different,
        "that tell of rejected readings",
    )


def audit_times(
    config: Config, folder: Path, windows: int, generator: np.random.Generator
) -> EventFinding:
    """Whether a value decides on the times, the sizes or the headers of what is published, with
    either kind of `times`.

    Clients whose readings were taken and taken in at the same times differ in the contents of some
    of them alone: they are elsewhere, outside of the bounds, without values, cannot be decoded, or
    have another time in their content than their producer noted. Compared are how many updates
    there are, all of each but its counts, and its headers: chance has no part in it.
    """
    counting = config.resolved.counted
    size = windows * config.contract.privacy.window_readings
    rows = generator.uniform(*MIDDLE, size=(size, config.contract.width))
    changed = generator.random(size) < REJECTED_SHARE
    # The first and the last reading of a window decide on its times.
    changed[:: config.contract.privacy.window_readings] = True
    different = 0
    updates_seen = 0
    for times in ("arrival", "public"):
        if times == "public" and config.contract.privacy.hide_presence:
            continue
        privacy = config.contract.privacy.model_copy(update={"times": times})
        contract = config.contract.model_copy(update={"privacy": privacy})
        stated = config.model_copy(update={"contract": contract})
        seen = []
        for name, values, altered in _neighbours_in_a_value(rows, changed):
            audited = in_folder(
                stated, folder / f"{times}-{name}", [model.declared for model in counting]
            )
            attacks = {model.name: CountsAttack(audited.resolved, model) for model in counting}
            with AuditedClient(audited) as client:
                readings = audited.resolved.bounds.from_unit(values)
                updates = client.publish(readings, apart=True, altered=altered)
                headers = map(_form_of, client.message_headers)
            public = [attacks[update.model].public_part(update) for update in updates]
            seen.append(list(zip_longest(public, headers)))
        different += sum(len(set(alike)) > 1 for alike in zip_longest(*seen))
        updates_seen += len(seen[0])
    subject = ", ".join(model.name for model in counting)
    return EventFinding(
        "times of readings", subject, updates_seen, "updates", different, "that tell of a value"
    )


def _neighbours_in_a_value(rows: Floats, changed: Bools) -> Iterator[tuple[str, Floats, Altered]]:
    """Name, rows (n, d) in unit coordinates, and what is stored of each, of clients whose readings
    differ in their contents alone, where `changed` (n,)."""

    def damaged(place: int, reading: Reading) -> bytes:
        # The byte with which no value of MessagePack begins.
        return b"\xc1" if changed[place] else reading.encode()

    def dated(place: int, reading: Reading) -> bytes:
        return replace(reading, time=0.0).encode() if changed[place] else reading.encode()

    for name, value in (
        ("inside", None),
        ("moved", SECOND),
        ("outside", 1e3),
        ("rejected", np.nan),
    ):
        values = rows if value is None else np.where(changed[:, None], value, rows)
        yield name, values, unaltered
    yield "undecodable", rows, damaged
    yield "dated", rows, dated


def _form_of(headers: Headers) -> tuple[tuple[str, int], ...]:
    """The name and the length of each header: what names a process differs by chance."""
    return tuple((name, len(content)) for name, content in headers)


def _fill_first_window(client: AuditedClient, contract: ResolvedContract) -> None:
    """Let trials begin with a window: the first one of a client is shorter, by a phase that its
    name decides."""
    bounds = contract.bounds
    size = contract.contract.privacy.window_readings
    middle = bounds.from_unit(np.full((1, contract.width), sum(MIDDLE) / 2))
    while not client.publish(middle):
        pass
    client.publish(np.repeat(middle, size, axis=0))


def _neighbours(
    generator: np.random.Generator, contract: ResolvedContract, second: Second
) -> Neighbours:
    """Two windows that differ in one reading, or in all readings of one user, who has more than a
    window counts."""
    size = contract.contract.privacy.window_readings
    unit = contract.mode.unit
    window = generator.uniform(*MIDDLE, size=(size, contract.width))
    if second == "other times":
        return _at_the_times_of_others(window, unit.readings_max)
    own = 1
    if unit.is_user:
        # Some more than a window counts, so that the bound on them is attacked as well.
        own = min(size, unit.readings_max + BEYOND)
    # In order: of a user's readings in a window the first ones are counted.
    places = np.sort(generator.choice(size, size=own, replace=False))
    other = window.copy()
    window[places] = FIRST
    other[places] = np.nan if second == "rejected" else SECOND
    if second == "incomplete":
        other[places, : contract.width // 2] = np.nan
    # Every other reading is of a user of its own, so that only the attacked one has several.
    users = [USER if place in places else str(place).encode() for place in range(size)]
    counted = np.ones(size, dtype=np.bool_)
    counted[places[unit.readings_max :]] = False
    return Neighbours((window, other), users, (counted, counted))


def _that_drops_repeats(config: Config) -> Config:
    """The federation with clients that drop repeats, and windows in which that shows above the
    noise."""
    privacy = config.contract.privacy
    # In a small window the counts of half a window would not stand out of the noise.
    window = max(privacy.window_readings, USERS_WINDOW * config.resolved.mode.unit.readings_max)
    contract = config.contract.model_copy(
        update={"privacy": privacy.model_copy(update={"window_readings": window})}
    )
    client = config.client.model_copy(update={"drop_repeats": True})
    return config.model_copy(update={"contract": contract, "client": client})


def _at_the_times_of_others(window: Floats, readings_max: int) -> Neighbours:
    """Two windows alike but for the times of the user with its first half: in the first, those of
    the second half.

    Where the times of one user decide on readings of others, the second half is not counted in the
    first window.
    """
    size = len(window)
    half = size // 2
    window[size - half :] = FIRST
    users = [USER if place < half else str(place).encode() for place in range(size)]
    counted = np.ones(size, dtype=np.bool_)
    counted[min(half, readings_max) : half] = False
    without = counted.copy()
    without[size - half :] = False
    own_times = list(range(size))
    same_time_as = [*own_times[size - half :], *own_times[half:]]
    return Neighbours((window, window), users, (without, counted), (same_time_as, own_times))
