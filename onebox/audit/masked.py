"""The audit of masked counts: all clients but one, the server and all helpers but one attack what
is left of a window.

Clients, server and helpers run as they are, each with a folder of its own. Parties that collude
know the counts of the other clients, every mask of the helpers that collude, and what is in the
log: that leaves the counts of one client with the noise of one helper. All readings of a window of
the client lie in one place or in another, which is as much as its clip lets them differ.

Noise of this kind is Gaussian, so a share of right guesses stands for a distance of the two
distributions in standard deviations, that for a rho, and that for an epsilon at delta: bounds of
the share become bounds of epsilon.
"""

from __future__ import annotations

import math
import secrets
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, Self, cast

import numpy as np

from shoal.config.contract import Privacy
from shoal.config.resolved import ResolvedModel
from shoal.config.settings import Config
from shoal.helper_node.bootstrap import open_helper
from shoal.helper_node.node import HelperNode
from shoal.kernels.arrays import Bools, Floats, Ints, Words32
from shoal.onebox.audit.canaries import canary_readings, occurrences, traces, what_left
from shoal.onebox.audit.client import NAME, NOW, AuditedClient, in_folder, new_records
from shoal.onebox.audit.statistics import (
    ALPHA,
    EventFinding,
    Finding,
    Loss,
    LossFinding,
    clopper_pearson,
    loss_from_statistic,
    verdict,
)
from shoal.onebox.audit.windows import FIRST, SECOND
from shoal.privacy.gaussian import ROUNDED, epsilon_of
from shoal.privacy.masked import Masked, clip_order, readings_within
from shoal.privacy.masks import helper_public, mask, pair_key
from shoal.protocol.masked import HelperSum, MaskedCounts, log_name, signed_counts, words_of
from shoal.runtime.helper_state import make_helper_state
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.node import ServerNode
from shoal.transports import open_log
from shoal.transports.base import Positions, beginning

OTHER: Final = "colluding"
"""the client that stands for all that collude"""
STILL_READINGS: Final = 10**12
"""readings between two changes of the tree: the plan stays what it is"""
STEPS_MAX: Final = 50
"""steps of all nodes until a round must have ended"""
# Each canary is searched for in all that was published; more would take longer and show no more.
CANARIES_MAX: Final = 50
LEFT_OUT: Final = ("budget_days", "budget_epsilon")


class MaskedScene:
    """A federation in a scratch folder under the contract's terms, with helpers whose keys the
    audit has made."""

    def __init__(self, config: Config, model: ResolvedModel, folder: Path) -> None:
        self._keys = {
            helper.name: secrets.token_bytes(32) for helper in config.contract.privacy.helpers
        }
        self._config = scratch_federation(config, model, folder, self._keys)
        self.contract = self._config.resolved
        (self.model,) = self.contract.counted
        self.mode = cast("Masked", self.contract.mode)
        assert self.model.counts is not None
        self._counter = self.model.counts.algorithm.counter(self.model.options, self.contract.width)
        for name, key in self._keys.items():
            make_helper_state(folder / "helpers" / name, helper_public(key))
        with ExitStack() as opening:
            self._server: ServerNode = opening.enter_context(
                resumed(open_server(self._config, clock=lambda: NOW))
            )
            self.client = opening.enter_context(AuditedClient(self._config))
            self.other = opening.enter_context(AuditedClient(self._config, OTHER))
            self._helpers: list[HelperNode] = [
                opening.enter_context(
                    resumed(open_helper(self._config, key, folder / "helpers" / name))
                )
                for name, key in self._keys.items()
            ]
            self._log = opening.enter_context(closing(open_log(self._config.log)))
            self._positions: Positions = beginning(self._log, self._config.contract.updates_topic)
            self._stack = opening.pop_all()

    def round(self, readings: Floats, of_other: Floats) -> SeenRound:
        """One window (n, d) of the audited client and one of the other, until the server has
        absorbed both."""
        topic = self._config.contract.updates_topic
        self._server.step()
        self.client.write(readings)
        self.other.write(of_other)
        messages: dict[str, MaskedCounts] = {}
        sums: dict[str, HelperSum] = {}
        for _ in range(STEPS_MAX):
            self.client.step()
            self.other.step()
            self._server.step()
            # Between two steps of the server: it asks for sums in the first, and absorbs them in
            # the second.
            for helper in self._helpers:
                helper.step()
            self._server.step()
            records, self._positions = new_records(self._log, topic, self._positions)
            for record in records:
                kind = dict(record.headers)["type"]
                if kind == MaskedCounts.TYPE.encode():
                    message = MaskedCounts.decode(record.value, record.headers)
                    messages[message.client] = message
                elif kind == HelperSum.TYPE.encode():
                    found = HelperSum.decode(record.value, record.headers)
                    sums[found.helper] = found
            if len(sums) == len(self._helpers):
                return SeenRound(messages, sums)
        raise RuntimeError("a round of the audit of masked counts has not ended")

    def exposed(self, seen: SeenRound, of_other: Floats) -> Ints:
        """Rest of the audited client: its counts (cells,) with the noise of the one honest
        helper."""
        *colluding, honest = self._keys
        messages = seen.messages.values()
        # Words wrap: sums and differences are modulo 2**32, as those of the masks are.
        total = np.zeros(seen.messages[NAME].cells, dtype=np.uint32)
        for message in messages:
            total += words_of(message.counts)
            for helper in colluding:
                total -= self._mask(message, helper)
        total -= words_of(seen.sums[honest].total)
        return signed_counts(total) - self.counts(seen, OTHER, of_other)

    def _mask(self, message: MaskedCounts, helper: str) -> Words32:
        log = log_name(self._log.identity(self._config.contract.updates_topic))
        names = message.federation, message.contract, message.model, helper, message.client, log
        name = message.entry.name(message.round, message.plan)
        return mask(pair_key(self._keys[helper], message.key, names), name, message.cells)

    def counts(self, seen: SeenRound, client: str, readings: Floats) -> Ints:
        """The counts (cells,) that readings of a client must have in its message of a round."""
        message = seen.messages[client]
        rows = self.contract.bounds.to_unit(readings)
        public = client.encode() + b"\0" + self.model.name.encode()
        cohort = f"{self.contract.federation}/{self.model.name}".encode(), message.round
        counts_of = partial(self._count, rows, public, message.window, cohort)
        order = clip_order(public, message.window, len(rows))
        counted, _ = readings_within(
            counts_of, np.ones(len(rows), dtype=np.bool_), order, self.mode.clip_squared
        )
        return np.asarray(counted.counts)

    def _count(
        self, rows: Floats, public: bytes, number: int, cohort: tuple[bytes, int], valid: Bools
    ) -> Any:
        return self._counter.count(rows, valid, public, number, cohort)

    def left(self) -> bytes:
        """All that is outside the folders of clients."""
        return b"\0".join(what_left(self._config))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@dataclass(frozen=True)
class SeenRound:
    """A round as the log shows it."""

    messages: dict[str, MaskedCounts]
    """client -> its message"""
    sums: dict[str, HelperSum]
    """helper -> its sum"""


def scratch_federation(
    config: Config, model: ResolvedModel, folder: Path, keys: dict[str, bytes]
) -> Config:
    """The federation in a scratch folder: two clients are a batch, and the budget of a span allows
    every trial."""
    options = dict(model.declared.options)
    assert model.counts is not None
    if model.counts.algorithm.samples_axes:
        options["grow_readings"] = STILL_READINGS
    audited = in_folder(config, folder, [model.declared.model_copy(update={"options": options})])
    terms = {
        name: value
        for name, value in config.contract.privacy.model_dump().items()
        if name not in LEFT_OUT
    }
    helpers = [{"name": name, "key": helper_public(key).hex()} for name, key in keys.items()]
    # No wait: a round ends as soon as both clients have answered, as the clock of an audit stands
    # still.
    terms |= {"helpers": helpers, "batch_min": 2, "batch_s": 1e-9}
    privacy = Privacy.model_validate(
        {name: value for name, value in terms.items() if value is not None}
    )
    contract = audited.contract.model_copy(update={"privacy": privacy})
    server = audited.server.model_copy(update={"helper_key_file": None, "client_keys": None})
    return audited.model_copy(update={"contract": contract, "server": server})


def audit_masked(
    config: Config, model: ResolvedModel, folder: Path, trials: int, generator: np.random.Generator
) -> list[Finding]:
    """Guess in which of two places a whole window of a client lay, and bound the noise of the
    honest helper.

    Also whether size or processor time of a message tell it; whether processor time tells that a
    window was cut off, by the other client, half of whose windows lie in one place; and whether
    readings of that client, which spread in the others, are anywhere outside its folder.
    """
    with MaskedScene(config, model, folder) as scene:
        contract = scene.contract
        size = scene.contract.contract.privacy.window_readings
        bounds = contract.bounds
        d = contract.width
        was_first = generator.integers(0, 2, size=trials).astype(np.bool_)
        places = [bounds.from_unit(np.full((size, d), place)) for place in (FIRST, SECOND)]
        spreads = generator.integers(0, 2, size=trials).astype(np.bool_)
        spreads[0] = True  # so that there are canaries
        right = 0
        noises = []
        sizes = np.empty(trials)
        canaries = []
        seconds = np.empty(trials)
        of_others = np.empty(trials)
        for trial in range(trials):
            truth = 0 if was_first[trial] else 1
            of_other = places[0]
            if spreads[trial]:
                of_other = canary_readings(bounds, size, generator)
                canaries.append(of_other[: 4 * CANARIES_MAX // trials + 1])
            seen = scene.round(places[truth], of_other)
            exposed = scene.exposed(seen, of_other)
            first, second = (scene.counts(seen, NAME, place) for place in places)
            # The likelihood ratio under Gaussian noise: no other guess is right more often.
            guess = _squared(exposed - second) - _squared(exposed - first)
            right += (guess > 0) == bool(was_first[trial])
            noises.append(exposed - (first, second)[truth])
            sizes[trial] = len(seen.messages[NAME].encode())
            seconds[trial] = scene.client.step_s
            of_others[trial] = scene.other.step_s
        declared = scene.mode.window_epsilon
        delta = scene.mode.delta
        planted = np.concatenate(canaries)[:CANARIES_MAX]
        wanted = traces(planted, bounds)
        found = occurrences(scene.left(), wanted)
    name = model.name
    return [
        LossFinding(
            "masked counts, a whole window moved",
            name,
            declared,
            gaussian_loss(trials, right, delta),
        ),
        noise_finding(name, declared, np.concatenate(noises), scene.mode),
        LossFinding(
            "masked counts, size of messages", name, declared, loss_from_statistic(sizes, was_first)
        ),
        LossFinding(
            "masked counts, time of messages",
            name,
            declared,
            loss_from_statistic(seconds, was_first),
        ),
        LossFinding(
            "masked counts, time of windows cut off",
            name,
            declared,
            loss_from_statistic(of_others, spreads),
        ),
        EventFinding(
            "masked counts, canaries", name, planted.size, "values", found, "traces of them outside"
        ),
    ]


def _squared(difference: Ints) -> int:
    return int(difference @ difference)


def gaussian_loss(trials: int, hits: int, delta: float) -> Loss:
    """The epsilon at `delta` of Gaussian noise under which this share of guesses between two inputs
    is right."""
    low, high = clopper_pearson(hits, trials, ALPHA)
    # Half a hit more keeps it off 0 and 1, where the quantile is infinite.
    estimate = (hits + 0.5) / (trials + 1.0)
    return Loss(
        trials, trials, hits, *(_epsilon_of_share(share, delta) for share in (estimate, low, high))
    )


def _epsilon_of_share(share: float, delta: float) -> float:
    if share <= 0.5:
        return 0.0
    if share >= 1.0:
        return math.inf
    # The best guess is right where the noise stays within half of the distance.
    distance = 2.0 * NormalDist().inv_cdf(share)
    return epsilon_of(distance**2 / 2.0, delta)


@dataclass(frozen=True)
class NoiseFinding:
    """The variance of noise that was seen, as the epsilon that it stands for, beside the declared
    one."""

    audit: str
    subject: str
    declared: float
    counts: int
    """counts whose noise was seen"""
    estimate: float
    low: float
    high: float

    @property
    def refuted(self) -> bool:
        """Whether even the lower bound of epsilon exceeds the declared one."""
        return self.low > self.declared

    def line(self) -> str:
        """See `Finding.line`."""
        return (
            f"{self.audit} ({self.subject}): {self.counts} counts; epsilon {self.estimate:.2f} by "
            f"their variance, at least {self.low:.2f}, at most {self.high:.2f}, declared "
            f"{self.declared:g}: {verdict(self)}"
        )

    def as_dict(self) -> dict[str, Any]:
        """See `Finding.as_dict`."""
        # JSON has no infinity.
        finite: dict[str, float | None] = {}
        for name in BOUNDS:
            value = getattr(self, name)
            finite[name] = value if math.isfinite(value) else None
        named = {
            "audit": self.audit,
            "subject": self.subject,
            "trials": self.counts,
            "alpha": ALPHA,
        }
        return (
            named
            | {f"epsilon_{name}": value for name, value in finite.items()}
            | {"refuted": self.refuted}
        )


BOUNDS: Final = ("declared", "estimate", "low", "high")


def noise_finding(subject: str, declared: float, noise: Ints, mode: Masked) -> NoiseFinding:
    """What the noise (n,) of the honest helper, which only an audit can see, proves of its
    variance."""
    total = float(np.square(noise, dtype=np.float64).sum())
    count = len(noise)
    # A low quantile of the sum of squares gives a large variance, which stands for a small epsilon:
    # so it is the lower bound of epsilon that comes second.
    variances = [
        total / at for at in (count, _chi_square(count, ALPHA), _chi_square(count, 1.0 - ALPHA))
    ]
    estimate, low, high = (_epsilon_of_variance(variance, mode) for variance in variances)
    return NoiseFinding(
        "masked counts, noise of one helper", subject, declared, count, estimate, low, high
    )


def _epsilon_of_variance(variance: float, mode: Masked) -> float:
    if variance <= ROUNDED:
        return math.inf
    return epsilon_of(mode.squared_distance / (2.0 * (variance - ROUNDED)), mode.delta)


def _chi_square(n: int, part: float) -> float:
    """A quantile of the chi-square distribution (Wilson and Hilferty 1931; off by less than 0.1 %
    from 100 on)."""
    spread = 2.0 / (9.0 * n)
    return n * (1.0 - spread + NormalDist().inv_cdf(part) * math.sqrt(spread)) ** 3
