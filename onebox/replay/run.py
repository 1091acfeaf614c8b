"""Runs a replay: what is left of the parts, then rounds and looks, then the digest of everything.

Rounds are over all replayed clients: each is a tree of exact sums of the clients' answers.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, NamedTuple, Self, cast

import numpy as np

from shoal.algorithms.rounds.base import Params, Stats
from shoal.algorithms.rounds.iteration import iterate
from shoal.algorithms.streaming import Arrays, Contribution, QueryingHalf
from shoal.client_nodes.intake import NO_SPAN
from shoal.client_nodes.learner import ModelLearner
from shoal.client_nodes.publisher import EncodedUpdate, Publisher
from shoal.config.resolved import ResolvedModel
from shoal.files import atomic_file
from shoal.kernels.arrays import Floats, Ints
from shoal.onebox.replay.engine import Engine, LocalEngine, remove
from shoal.onebox.replay.plan import ReplayPlan
from shoal.onebox.replay.results import (
    PartSummary,
    ReplayedRecord,
    answers_file,
    digest_of,
    halves_of,
    learnt,
    records,
    windows_of,
    write_answers,
)
from shoal.protocol.messages import Update
from shoal.protocol.validation import Validator
from shoal.server_node.models.rounds import init_hint_for

LIMB_BITS: Final = 32
MASK: Final = np.int64(2**LIMB_BITS - 1)
MANTISSA_BITS: Final = 53
LEAST_EXPONENT: Final = 1074 + MANTISSA_BITS
"""exponent: 2 to the power of minus this divides every float64, also after its mantissa was made a
whole number"""
LIMBS: Final = (LEAST_EXPONENT + 1024) // LIMB_BITS + 3
"""number of limbs of a sum; the last one has the sign, and room for 2^62 terms"""

TERMS_MAX: Final = 2**28
"""terms after which limbs are reduced to 32 bits again; a term adds less than 2^34 to a limb"""


class ExactSum:
    """The sum of float64 arrays of one shape. Limb j of an entry counts multiples of 2^(32 j -
    `LEAST_EXPONENT`)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._terms = 0
        self._limbs: Ints = np.zeros((LIMBS, int(np.prod(shape))), dtype=np.int64)

    def add(self, array: Floats) -> None:
        """Add an array of finite numbers."""
        mantissa, exponent = np.frexp(array.ravel())
        whole = np.ldexp(mantissa, MANTISSA_BITS).astype(np.int64)
        limb, shift = np.divmod(
            exponent.astype(np.int64) - MANTISSA_BITS + LEAST_EXPONENT, LIMB_BITS
        )
        low = (whole & MASK).astype(np.uint64) << shift.astype(np.uint64)
        high = (whole >> LIMB_BITS) << shift
        entries = np.arange(whole.size)
        # Each entry occurs once in every line, so these are plain additions.
        self._limbs[limb, entries] += (low & np.uint64(MASK)).astype(np.int64)
        self._limbs[limb + 1, entries] += (low >> np.uint64(LIMB_BITS)).astype(np.int64) + (
            high & MASK
        )
        self._limbs[limb + 2, entries] += high >> LIMB_BITS
        self._terms += 1
        if self._terms == TERMS_MAX:
            self._limbs = _carried(self._limbs)
            self._terms = 1

    def merge(self, other: Self) -> None:
        """Add another sum, which stays as it is."""
        self._limbs = _carried(self._limbs) + _carried(other._limbs)
        self._terms = 1

    def value(self) -> Floats:
        """The float64 nearest to each sum."""
        scale = 1 << LEAST_EXPONENT
        totals = [
            sum(int(limb) << (LIMB_BITS * place) for place, limb in enumerate(limbs) if limb)
            for limbs in _carried(self._limbs).T
        ]
        return np.array([total / scale for total in totals], dtype=np.float64).reshape(self.shape)


class ExactSums:
    """The sums of additive answers: an `ExactSum` for each of their arrays."""

    def __init__(self) -> None:
        self._sums: dict[str, ExactSum] = {}
        self.answers = 0

    def add(self, answer: Mapping[str, Floats]) -> None:
        """Add one answer; all have the same names and shapes."""
        self.answers += 1
        for name, array in answer.items():
            self._sums.setdefault(name, ExactSum(array.shape)).add(array)

    def merge(self, others: Iterable[Self]) -> Self:
        """Add other sums; returns itself."""
        for other in others:
            self.answers += other.answers
            for name, one in other._sums.items():
                self._sums.setdefault(name, ExactSum(one.shape)).merge(one)
        return self

    def value(self) -> dict[str, Floats]:
        """The nearest float64 of every sum, by the names of the arrays; none without answers."""
        return {name: one.value() for name, one in self._sums.items()}


def _carried(limbs: Ints) -> Ints:
    """The same numbers with all limbs but the last one in 0..2^32 - 1."""
    carried = limbs.copy()
    for place in range(LIMBS - 1):
        carried[place + 1] += carried[place] >> LIMB_BITS
        carried[place] &= MASK
    return carried


FAN_IN: Final = 16
"""sums that one worker adds up at a time"""


class RoundsResult(NamedTuple):
    """The outcome of the rounds of one model."""

    params: Params
    rounds: int
    """number of rounds that were run"""
    shift: float
    """distance by which the last round moved the model; infinite before the first"""
    answers: int
    """clients that answered in the last round"""

    @property
    def digest(self) -> str:
        """SHA-256 over the parameters, as 64 hexadecimal digits."""
        digest = hashlib.sha256()
        # By name: the digest must not depend on the order in which an algorithm returns its arrays.
        for name, array in sorted(self.params.items()):
            digest.update(
                f"{name}{array.dtype.str}{array.shape}".encode()
                + np.ascontiguousarray(array).tobytes()
            )
        return digest.hexdigest()


def run_rounds(
    plan: ReplayPlan,
    engine: Engine,
    model: ResolvedModel,
    on_round: Callable[[int, float], None] = lambda number, shift: None,
) -> RoundsResult:
    """Run rounds of one model until it moves by less than its `tolerance`, or `rounds_max` rounds;
    write the model.

    It starts from what a server starts from, and every client with enough rows answers each round
    from its newest noisy rows. `on_round` gets the number of each round and its shift. Raises
    `SettingsError` and `InvalidData`.
    """
    assert model.rounds is not None
    algorithm = model.rounds.algorithm
    rounds = model.declared.rounds
    hint = init_hint_for(plan.contract, model, None)
    assert hint is not None, "the plan takes no model that starts from another one's clusters"
    params = algorithm.start(model.options, plan.contract.width, hint)
    answers = 0
    n_rounds = 0

    def ask(params: Params) -> list[Stats] | None:
        nonlocal answers
        sums = add_up(engine, partial(part_sums, plan, model.name, params), range(plan.parts))
        if not sums.answers:
            return None
        answers = sums.answers
        return [sums.value()]

    def end_round(shift: float) -> bool:
        nonlocal n_rounds
        n_rounds += 1
        on_round(n_rounds, shift)
        return False

    run = iterate(
        algorithm,
        params,
        ask,
        rounds_max=rounds.rounds_max,
        tolerance=rounds.tolerance,
        is_over=end_round,
    )
    _write(plan, model, run.params)
    shift = run.shifts[-1] if run.shifts else np.inf
    return RoundsResult(run.params, n_rounds, shift, answers)


def part_sums(plan: ReplayPlan, name: str, params: Params, part: int) -> ExactSums:
    """The sums of the answers of the clients of one part to the model of this name."""
    # A worker gets the name, because the functions of an algorithm do not travel.
    model = plan.contract.models[name]
    assert model.rounds is not None
    sums = ExactSums()
    for _, rows in windows_of(plan, part):
        if len(rows) >= model.declared.rounds.rows_min:
            sums.add(model.rounds.algorithm.answer(params, rows[-model.declared.readings_max :]))
    return sums


def add_up(engine: Engine, leaf: Callable[[int], ExactSums], parts: Sequence[int]) -> ExactSums:
    """The sum over all parts, as a tree: `FAN_IN` sums are added on one worker, then as many of
    their results."""
    level = list(engine.spread(leaf, parts))
    while len(level) > FAN_IN:
        groups = [level[first : first + FAN_IN] for first in range(0, len(level), FAN_IN)]
        level = list(engine.spread(_merged, groups))
    return _merged(level)


def _merged(sums: Sequence[ExactSums]) -> ExactSums:
    return ExactSums().merge(sums)


def _write(plan: ReplayPlan, model: ResolvedModel, params: Params) -> None:
    """The parameters as NumPy arrays by name."""
    arrays = io.BytesIO()
    np.savez(arrays, allow_pickle=False, **params)
    with atomic_file(plan.folder / f"model-{model.name}.npz", replace=True) as temporary:
        temporary.write_bytes(arrays.getvalue())


ANSWER_S: Final = 1e-3
"""seconds between two answers, which keep their order"""
NO_KEY: Final = b""
"""what asks for statistics draws nothing"""


class Looks(NamedTuple):
    """Requests to clients, and their answers."""

    snapshot: Arrays
    """arrays of the model in the end"""
    asks: int
    clients: int
    """clients that have answered"""
    records: list[ReplayedRecord]
    """the answers, in their order"""


class _Answering(NamedTuple):
    """One client that has learnt, and its newest update."""

    name: str
    learner: ModelLearner
    at: float
    number: int
    """records of it so far"""


def run_looks(plan: ReplayPlan, model: ResolvedModel, known: Iterable[ReplayedRecord]) -> Looks:
    """Let the clients answer until nothing is asked. `known`: the records of the replay in their
    canonical order.

    The server half absorbs these, and then what clients answer in turns, by updates of their own: a
    server that reads all of them comes to the same model. The state of all clients is held in
    memory.
    """
    server = cast("QueryingHalf", model.streaming.server(model.options, plan.contract.width))
    newest: dict[str, tuple[float, int]] = {}
    end = 0.0
    for record in known:
        end = max(end, record.at)
        newest[record.client] = record.at, record.number + 1
        if record.model == model.name:
            server.absorb([_contribution(record.client, record.value)], NO_KEY)
    clients = _clients(plan, model, newest)
    asks = int(server.take_new_query())
    records = list[ReplayedRecord]()
    answered = set[str]()
    while turn := list(_turn(clients, server, end + ANSWER_S * len(records))):
        for record, asks_more in turn:
            records.append(record)
            answered.add(record.client)
            asks += asks_more
    return Looks(server.snapshot(), asks, len(answered), records)


def _clients(
    plan: ReplayPlan, model: ResolvedModel, newest: Mapping[str, tuple[float, int]]
) -> list[_Answering]:
    """Those that were silent longest first: a phase ends once all that are present have answered."""
    validator = Validator(plan.contract)
    found = []
    for part in range(plan.parts):
        for client, state in halves_of(plan, part, model.name):
            publisher = Publisher(plan.contract, client, validator, plan.update_bytes_max)
            learner = ModelLearner(model, plan.contract.width, publisher)
            learner.restore(state)
            found.append(_Answering(client, learner, *newest.get(client, (0.0, 0))))
    # The order in which a log would have their updates; clients of one moment by name.
    return sorted(found, key=lambda one: (one.at, one.name))


def _turn(
    clients: list[_Answering], server: QueryingHalf, at: float
) -> Iterator[tuple[ReplayedRecord, bool]]:
    """Each client contributes one piece of what it is asked; with it, whether something else is
    asked from then on."""
    snapshot = server.snapshot()
    for place, one in enumerate(clients):
        one.learner.adopt_arrays(snapshot)
        if not one.learner.owes_answer:
            continue
        at += ANSWER_S
        update = one.learner.make_update(at, NO_SPAN, None)
        assert update is not None, "an answer that is owed"
        number = one.number
        for value in _values(update):
            server.absorb([_contribution(one.name, value)], NO_KEY)
            asks_more = server.take_new_query()
            if asks_more:
                snapshot = server.snapshot()
            yield ReplayedRecord(at, one.name, number, update.model, value), asks_more
            number += 1
        clients[place] = one._replace(number=number)


def _values(update: EncodedUpdate) -> list[bytes]:
    return [record.value for record in update.records if record.value is not None]


def _contribution(client: str, value: bytes) -> Contribution:
    update = Update.decode(value, Update.headers())
    return Contribution(client, update.sequence, update.arrays)


ENGINES = ("local", "ray", "spark")


class ReplayResult(NamedTuple):
    """The result of a replay."""

    totals: PartSummary
    """totals over all parts"""
    digest: str
    """SHA-256 over all updates in the canonical order: the same for every engine and every number
    of workers"""
    models: dict[str, RoundsResult]
    """the models in rounds by name"""


class Progress(NamedTuple):
    """Functions that a replay calls while it runs, at any rate."""

    readings: Callable[[int, int], None] = lambda learnt, total: None
    """(readings learnt, of how many)"""
    round: Callable[[ResolvedModel, int, float], None] = lambda model, number, shift: None
    """(model, number of the round, by how much it moved the model)"""


def open_engine(name: str, workers: int, address: str | None = None) -> Engine:
    """An engine by its name, one of `ENGINES`. Raises `MissingExtra`.

    `address` of a running cluster of Ray or Spark; None: `workers` workers on this machine.
    """
    if name == "ray":
        from shoal.onebox.replay.ray_engine import RayEngine  # noqa: PLC0415 - an extra

        return RayEngine(workers, address)
    if name == "spark":
        from shoal.onebox.replay.spark_engine import SparkEngine  # noqa: PLC0415 - an extra

        return SparkEngine(workers, address)
    return LocalEngine(workers)


SILENT: Final = Progress()


def replay(plan: ReplayPlan, engine: Engine, progress: Progress = SILENT) -> ReplayResult:
    """Learn the parts that are not learnt yet, and run the rounds. A replay that was killed
    continues so.

    Raises `InvalidState` when the folder holds another replay, `InvalidData` and `SettingsError`.
    """
    plan.claim_folder()
    done = learnt(plan)
    left = sorted(set(range(plan.parts)) - {summary.part for summary in done})
    progress.readings(_total(done).readings, plan.readings)
    if left:
        for summary in engine.learn(plan, left):
            done.append(summary)
            progress.readings(_total(done).readings, plan.readings)
    # Also after a kill between the last part and this: raw readings are in it.
    remove(plan)
    models = {
        model.name: run_rounds(plan, engine, model, _of_model(progress, model))
        for model in plan.contract.in_rounds
    }
    models |= _run_all_looks(plan)
    return ReplayResult(_total(done), digest_of(records(plan)), models)


def _run_all_looks(plan: ReplayPlan) -> dict[str, RoundsResult]:
    """Let clients answer the models that ask them; the snapshot of each is written as the
    parameters of the others."""
    for model in plan.contract.following:
        answers_file(plan, model.name).unlink(missing_ok=True)
    found = {}
    for model in plan.contract.following:
        looks = run_looks(plan, model, records(plan))
        write_answers(plan, model.name, looks.records)
        _write(plan, model, looks.snapshot)
        found[model.name] = RoundsResult(looks.snapshot, looks.asks, 0.0, looks.clients)
    return found


def _of_model(progress: Progress, model: ResolvedModel) -> Callable[[int, float], None]:
    return lambda number, shift: progress.round(model, number, shift)


def _total(summaries: Sequence[PartSummary]) -> PartSummary:
    counts: dict[str, Any] = asdict(PartSummary())
    for summary in summaries:
        counts = {name: count + getattr(summary, name) for name, count in counts.items()}
    return PartSummary(**counts | {"part": 0})
