"""A model in rounds on the server: it asks clients for answers, combines them, and publishes the
next parameters.

Which clients are asked, how long it waits and which answers count is the same for every algorithm
of the family. What closes a round is decided once: the new parameters and the next request are
stored before they are published.

It starts from the clusters that its source has found, or from the bounds of the contract.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shoal.algorithms.options import CRITERIA
from shoal.algorithms.rounds.base import InitHint, Params
from shoal.algorithms.rounds.choice import Landmarks, choose_clusters
from shoal.algorithms.rounds.policies import PolicyState
from shoal.config.resolved import ResolvedContract, ResolvedModel, RoundTerms
from shoal.config.sections import ServerSettings
from shoal.errors import MessageRejected
from shoal.kernels.arrays import Floats
from shoal.protocol.messages import Snapshot, Update, round_request_of
from shoal.protocol.validation import Validator
from shoal.runtime.checkpoint import (
    SavedPart,
    SavedParts,
    SavedValue,
    required_version,
)
from shoal.server_node.history.sources import NOTHING_PUBLISHED, PublishedHistory
from shoal.server_node.models.base import (
    ModelEvent,
    ModelRounds,
    Processed,
    PublishedSnapshot,
    ServedModel,
)
from shoal.server_node.models.publisher import ModelPublisher, PublishedModel
from shoal.server_node.models.round_state import (
    Participation,
    Phase,
    ReceivedAnswer,
    RoundState,
    restore_round_state,
)
from shoal.server_node.models.round_transitions import (
    Moment,
    RoundRules,
    due_transition,
    with_answer,
    with_clock,
)
from shoal.server_node.models.sequences import NO_CONTENT, Content
from shoal.server_node.report.lineage.events import ClusterChange
from shoal.server_node.report.status import ModelStatus, RoundStatus
from shoal.transports.base import Positions


def init_hint_for(
    contract: ResolvedContract,
    model: ResolvedModel,
    source: ServedModel | None,
    present: int | None = None,
) -> InitHint | None:
    """The hint to start from now: the known clusters of the source, or those that the model's
    criterion chooses from the source's nodes. `present` is the number of clusters that the model
    has, if it has started.

    Other models of the contract have no part in it, so adding one changes no other. None while the
    model is to take over clusters and there are none yet.
    """
    assert model.rounds is not None, "only models in rounds start from a hint"
    # Rows are in unit coordinates: the bounds of the contract are at 0 and 1.
    low = np.zeros(contract.width)
    high = np.ones(contract.width)
    names = [feature.name for feature in contract.features]
    # The seed is a function of the names, so that a restart draws the same start.
    digest = hashlib.sha256(f"shoal start 1\n{contract.federation}\n{model.name}".encode()).digest()
    # Four bytes: a seed travels as an integer of the parameters, and must be within what those may
    # hold.
    seed = int.from_bytes(digest[:4], "little")
    centres, mass = (np.empty((0, 0)), np.empty(0)) if source is None else known_clusters(source)
    if source is not None and len(centres):
        if model.rounds.clusters in CRITERIA:
            centres, mass = _chosen(model.rounds, model.options, source, seed, present)
        return InitHint(low, high, seed, centres, mass, names)
    if model.rounds.starts_from_another:
        return None
    return InitHint(low, high, seed, features=names)


def _chosen(
    terms: RoundTerms,
    options: Mapping[str, Any],
    source: ServedModel,
    seed: int,
    present: int | None,
) -> tuple[Floats, Floats]:
    """-> centres (k, d) and mass (k,) of the clusters that the model's criterion chooses from the
    nodes of `source`."""
    assert source.view is not None, "a model without a view has no known clusters"
    landmarks = Landmarks(source.view.nodes, source.view.mass.astype(np.float64))
    parsed = terms.algorithm.options.parse(options).as_dict()
    form = parsed.get("covariance", "full")
    choice = choose_clusters(
        parsed["clusters"], landmarks, parsed["clusters_max"], seed, form, present
    )
    return choice.centres, choice.mass


def known_clusters(source: ServedModel) -> tuple[Floats, Floats]:
    """-> centres (k, d) and mass (k,) of the known clusters in the newest snapshot, in the order of
    their identities.

    Only known clusters count: they are confirmed, so their number does not follow every group that
    comes and goes.
    """
    view = source.view
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for number, identity in source.lineage.of_number.items():
        numbers[identity].append(number)
    if view is None or not numbers:
        return np.empty((0, 0)), np.empty(0)
    centres = []
    masses = []
    # In the order of identities, so that a restart starts from the same centres.
    for identity in sorted(numbers):
        # A part that is not confirmed yet still counts as the cluster it parts from.
        mass = view.centre_mass[numbers[identity]]
        weight = mass if mass.sum() > 0 else np.ones(len(mass))
        centres.append(np.average(view.centres[numbers[identity]], axis=0, weights=weight))
        masses.append(mass.sum())
    return np.array(centres), np.array(masses)


def quarantined(state: RoundState, client: str) -> RoundState:
    """No round waits for the client any more, and nothing that it has answered counts in the next
    one.

    A model that sleeps wakes at once, to move to where the other clients' answers lead.
    """
    answered = state.newest_answer_of(client) > 0
    wake_at = state.wake_at
    if answered and state.phase is Phase.SLEEPING:
        wake_at = -math.inf
    return replace(
        state,
        quarantined=state.quarantined | {client},
        participation=state.participation.without_client(client),
        policy_state=state.policy_state.without(client),
        wake_at=wake_at,
    )


def unlearned(rules: RoundRules, state: RoundState, client: str) -> RoundState:
    """The state without anything that the client has ever answered.

    Where answers depend on nothing that earlier answers have changed (`RoundsAlgorithm.forget`),
    the answers of the others are combined anew, as they are kept. Elsewhere every answer since the
    client's first one is to parameters that the client had a part in, so the model starts again and
    asks the others.
    """
    without = quarantined(state, client)
    # By name: a sum of floating-point numbers depends on the order, and a server that reads the log
    # again must find the same parameters.
    kept = [answer.stats for _, answer in sorted(without.policy_state.cached.items())]
    forget = rules.terms.algorithm.forget
    if (
        forget is not None
        and kept
        and without.params is not None
        # The clusters of a source were found with the readings of this client, too: the model
        # starts again from those that the source finds without them.
        and not rules.terms.starts_from_another
    ):
        params = rules.terms.algorithm.combine(forget(without.params), kept)
        return replace(
            without,
            phase=Phase.SLEEPING,
            request=None,
            params=params,
            wake_at=-math.inf,
            shift=math.inf,
            combined_answers=len(kept),
        )
    return replace(
        without,
        phase=Phase.WAITING_FOR_CLUSTERS,
        request=None,
        params=None,
        initial=True,
        first_round=without.round + 1,
        closed_rounds=0,
        participation=without.participation.without_answers(),
        policy_state=PolicyState(),
        shift=math.inf,
        combined_answers=0,
        combined_readings=0,
    )


STATE_VERSION = 15


class RoundsModel(PublishedModel):
    """Stores, publishes and reports the rounds of one model; `round_transitions` decides. A
    `ServedModel`."""

    needs_whole_log = False

    def __init__(
        self,
        contract: ResolvedContract,
        model: ResolvedModel,
        settings: ServerSettings,
        validator: Validator,
        source: ServedModel | None = None,
        history: PublishedHistory = NOTHING_PUBLISHED,
    ) -> None:
        """`source` is the model whose clusters it starts from."""
        assert model.rounds is not None, "made for models in rounds alone"
        self._resolved = contract
        self._terms = model.rounds
        self._contract = contract.contract
        self._model = model.declared
        self._validator = validator
        self._source = source
        self._settings = settings
        check_params = partial(validator.check_params, model.name)
        self._rules = RoundRules(
            self._contract, self._model, self._terms, settings.pool_clients, check_params
        )
        self._publisher = ModelPublisher(contract, model, history, settings)
        self._state = RoundState()
        self._arrived: dict[str, ReceivedAnswer] = {}
        """client -> answer that `_state` does not have yet"""
        self._arrived_bytes = 0
        """bytes of their arrays, less those of the answers that they replace"""
        self._snapshot_due = False

    @property
    def _participation(self) -> Participation:
        """The participation with the answers that have arrived."""
        participation = self._state.participation
        if not self._arrived:
            return participation
        return participation.with_answers(self._arrived)

    def _join_arrived(self) -> None:
        """Put the answers that have arrived into the state, together: each by itself would copy all
        before it."""
        if self._arrived:
            self._state = replace(self._state, participation=self._participation)
            self._arrived = {}
            self._arrived_bytes = 0

    @property
    def rounds(self) -> ModelRounds:
        """The model itself."""
        return self

    @property
    def pending(self) -> bool:
        """Whether answers wait for their round to close."""
        received = self._arrived or self._state.participation.received
        return self._state.phase is Phase.COLLECTING and len(received) > 0

    @property
    def sleeping(self) -> bool:
        """Whether it has converged, and asks for nothing until it wakes."""
        return self._state.phase is Phase.SLEEPING

    @property
    def idle(self) -> bool:
        """Whether no round is open, nor is there anything to start from."""
        waiting = self._state.phase is Phase.WAITING_FOR_CLUSTERS
        return self.sleeping or (waiting and not self._can_start)

    @property
    def params(self) -> Params | None:
        """The newest parameters; None before it has started."""
        return self._state.params

    def process(self, update: Update, now: float, content: Content = NO_CONTENT) -> Processed:
        """Take in one validated answer. Raises `MessageRejected`, with the reasons of
        `ServedModel.process`."""
        if update.is_report:
            new = self.clients.take(update.client, update.sequence, 0, now, content)
            self.clients.note_rejected(update.client, update.rejected)
            return Processed(new)
        assert update.round is not None, "the validator lets no answer pass without its round"
        state = self._state
        answer = ReceivedAnswer.of(update)
        # Kept, a forged answer to a round far ahead would make every true one of this client a
        # repeated one.
        if update.round > state.round:
            raise MessageRejected(
                "sequence", f"answers round {update.round}, which was never opened"
            )
        usable = update.round >= max(
            state.first_round, state.round - self._model.rounds.late_rounds
        )
        alone = None
        if usable and state.params is not None:
            self._validator.check_answer_claims(update, state.params)
            # Combined alone, before it is kept: an answer that no combination takes is refused now,
            # where it is known whose it is.
            alone = self._validator.check_answer_combines(update, state.params)
            self._check_room(answer)
        # After the checks: an answer that is rejected must not use up its number.
        again = not self.clients.take(update.client, update.sequence, 0, now, content)
        if again or (usable and update.round <= self._newest_answer_of(update.client)):
            return Processed(False, "repeated")
        if alone is None:
            return Processed(False, "too_late")
        self.clients.set_readings(update.client, update.readings)
        self.clients.note_rejected(update.client, update.rejected)
        self._publisher.count_update(update)
        # The clusters of this client's rows alone show where these lie.
        found = self._terms.algorithm.view(alone)
        self._publisher.record(update, found.nodes, found.mass, now)
        self._keep(answer)
        in_time = update.round == state.round and state.phase is Phase.COLLECTING
        return Processed(True, "in_time" if in_time else "late")

    def skip(self, update: Update, now: float, content: Content) -> Processed:
        """Count an answer of an earlier contract. Raises as `process` does."""
        return self._publisher.skip(update, now, content)

    def _keep(self, answer: ReceivedAnswer) -> None:
        client = answer.answer.client
        replaced = self._arrived.get(client) or self._state.participation.received.get(client)
        self._arrived[client] = answer
        self._arrived_bytes += answer.size
        if replaced is not None:
            self._arrived_bytes -= replaced.size

    def _newest_answer_of(self, client: str) -> int:
        """The newest round that this client has answered; 0 for none."""
        arrived = self._arrived.get(client)
        if arrived is None:
            return self._state.newest_answer_of(client)
        return arrived.answer.round

    def _check_room(self, answer: ReceivedAnswer) -> None:
        """Raises `MessageRejected` ("quota") unless an answer may be kept."""
        size = answer.size
        settings = self._settings
        state = self._state
        if size > settings.client_bytes_max:
            raise MessageRejected(
                "quota", f"its arrays have {size} bytes, more than client_bytes_max"
            )
        # The client's own answers count too: it may have one of each kind.
        kept = (
            state.participation.received_bytes
            + self._arrived_bytes
            + state.policy_state.cached_bytes
        )
        if size + kept > settings.answers_bytes_max:
            raise MessageRejected(
                "quota", f"answers of {settings.answers_bytes_max} bytes are kept already"
            )

    def change_cluster(self, change: ClusterChange, place: tuple[int, int]) -> None:
        """Change a known cluster, in all snapshots to come. Raises `MessageRejected`
        ("cluster")."""
        # A snapshot of an open round would be a request of its own, so the change waits for the
        # next one that is due.
        self._publisher.change_cluster(change, place)
        self._snapshot_due |= self.sleeping

    def quarantine(self, client: str) -> None:
        """No round waits for the client, and nothing that it has answered counts in the next
        one."""
        # An answer that has arrived but is not joined yet would come back with the next step.
        self._join_arrived()
        self._state = quarantined(self._state, client)

    def release(self, client: str) -> None:
        """Rounds wait for the client again once it has answered."""
        self._state = replace(self._state, quarantined=self._state.quarantined - {client})

    def unlearn(self, client: str, read_up_to: Positions) -> None:
        """Combine the answers of the others anew, or start again and ask them."""
        self.clients.forget(client)
        self._publisher.begin_history_again()
        self._join_arrived()
        self._state = unlearned(self._rules, self._state, client)
        self._snapshot_due = self.sleeping

    def wake(self) -> None:
        """Open a round at the next opportunity, if it sleeps."""
        if self.sleeping:
            self._state = replace(self._state, wake_at=-math.inf)

    def on_timer(self, now: float) -> Sequence[ModelEvent]:
        """Open, close or reopen a round, start or wake: what is due. Every answer in the log must
        have been read."""
        self._join_arrived()
        self._state = with_answer(self._rules, with_clock(self._rules, self._state, now), now)
        transition = due_transition(self._rules, self._state, self._moment(now))
        if transition is None:
            return ()
        self._state, events = transition
        self._publisher.counts.readings = self._state.combined_readings
        self._snapshot_due = True
        return events

    def snapshot_due(self, now: float) -> bool:
        """Whether a round was opened, or the model went to sleep, since the newest snapshot."""
        return self._snapshot_due

    def snapshot_wait_s(self, now: float) -> float:
        """Seconds without end: a transition makes each snapshot, and the server looks for these
        with every step."""
        return math.inf

    def take_snapshot(
        self, positions: Positions, statement: Mapping[str, Any], now: float
    ) -> PublishedSnapshot:
        """The newest parameters, with the request of the open round if there is one."""
        state = self._state
        assert state.params is not None, (
            "a snapshot is due only after a transition, which leaves parameters"
        )
        self._snapshot_due = False
        return self._publisher.publish(
            state.params, positions, statement, now, number=state.round, request=state.request
        )

    def status(self) -> ModelStatus:
        """The model as people may see it."""
        state = self._state
        participation = self._participation
        expected = 0
        if state.request is not None:
            expected = len(participation.expected(self._contract, state.request, self._known()))
        received = len(participation.answered(state.round))
        rounds = RoundStatus(
            state.round, state.phase, state.combined_answers, received, state.shift, expected
        )
        return self._publisher.status(self._waiting_for(), rounds)

    def state(self) -> dict[str, Any]:
        """Everything a restart needs, the open round and its answers included."""
        self._join_arrived()
        return self._saved().state()

    def restore(self, state: dict[str, Any]) -> None:
        """Become the saved model. Raises `InvalidState`."""
        self._saved().restore(state)

    def _parts(self) -> dict[str, SavedPart]:
        rounds = SavedValue(self._state.saved, self._restore_rounds)
        return {"publisher": self._publisher, "rounds": rounds}

    def _saved(self) -> SavedParts:
        whole = f"the checkpoint of model {self.name}"
        version = required_version(STATE_VERSION, whole)
        return SavedParts(whole, self._parts(), {"version": version})

    def _restore_rounds(self, state: Mapping[str, Any]) -> None:
        self._state = restore_round_state(state)
        self._arrived = {}
        self._arrived_bytes = 0
        if self._state.params is not None:
            # Parameters that could not be published are damaged, whatever bytes they have.
            self._validator.check_params(self.name, self._state.params)
            self._terms.algorithm.view(self._state.params)

    def rebuild(self, published: Snapshot) -> None:
        """Go on with the newest parameters that were published; answers to earlier rounds are not
        needed."""
        assert published.round is not None, "the validator lets no snapshot pass without its round"
        self._publisher.adopt(published)
        request = round_request_of(published)
        self._state = replace(
            self._state,
            phase=Phase.SLEEPING if request is None else Phase.COLLECTING,
            params=published.arrays,
            round=published.round,
            initial=False,
            request=request,
            opened_at=published.made_at,
        )

    def begin_anew(self, state: Mapping[str, Any], before: ResolvedContract) -> None:
        """Go on after a change of the contract, with nothing that was learnt under the
        earlier one."""
        self._publisher.begin_anew(state, before)
        # Numbers of rounds go on: late answers to those of before are too late.
        number = self._publisher.newest_round(state)
        self._state = replace(self._state, round=number, first_round=number + 1)

    def _moment(self, now: float) -> Moment:
        return Moment(now, self._known(), self._publisher.counts.version, self._init_hint)

    def _known(self) -> list[str]:
        """The clients that have ever answered and are not in quarantine, sorted by name."""
        return [client for client in self.clients.names() if client not in self._state.quarantined]

    @property
    def _can_start(self) -> bool:
        """Whether there is anything to start from; unlike `_init_hint`, this costs nothing."""
        source = self._source
        found = source is not None and source.view is not None and bool(source.lineage.of_number)
        return found or not self._terms.starts_from_another

    def _init_hint(self) -> InitHint | None:
        params = self._state.params
        present = None
        if params is not None:
            present = len(self._terms.algorithm.view(params).centres)
        return init_hint_for(
            self._resolved, self._resolved.models[self.name], self._source, present
        )

    def _waiting_for(self) -> str:
        if self._state.params is None:
            return (
                f"This model takes over the clusters that {self._model.source} finds, and none has"
                " been found yet."
            )
        if self._state.initial:
            return "Clients have been asked for answers; the first round has not closed yet."
        return ""
