"""The federation in memory of clients whose counts are added up before noise: what masked counts
come to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from shoal.algorithms.density_tree.plan import CountedWindow
from shoal.algorithms.streaming import State
from shoal.kernels.arrays import Bools, Floats, Indices, Ints
from shoal.privacy.gaussian import certify, gaussian_noise
from shoal.privacy.masked import (
    CLIENTS_ADVISED,
    DELTA,
    Masked,
    clip_order,
    readings_within,
    sum_terms,
)
from shoal.saved_state import state_type
from shoal.simulation.counting import FullWindow, WindowFederation, WindowFederationState
from shoal.simulation.federation import Advance, to_the_end
from shoal.user_warnings import warn_user

MASKED_AXES: Final = 2
"""axes of each leaf that a round of masked sums counts"""
COHORT: Final = "cohort"
"""the client that a sum counts as"""


class SumBudget(NamedTuple):
    """Cost of the sums over clients for each of them."""

    epsilon: float | None
    """epsilon of a window, or of all `windows` of a client; None: sums without noise or clip"""
    windows: int | None = None
    """most windows of a client; None: no limit"""
    delta: float = DELTA
    helpers: int = 1
    """parties that each add the whole noise"""


@state_type
class MaskedFederationState(WindowFederationState):
    """See `WindowFederationState`."""

    rounds: int


class MaskedFederation(WindowFederation):
    """Clients whose counts are added up before noise, simulated without any mask.

    A round takes the next window of every client that has one. It ends when a client has a second
    one full: in a federation that client would read no further until the round has ended. The noise
    of all helpers is drawn here.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        width: int,
        n_clients: int,
        seed: int | None,
        budget: SumBudget,
        window_readings: int,
        steps: Floats | None = None,
    ) -> None:
        """See `WindowFederation`. Raises `SettingsError`."""
        windows = 1 if budget.windows is None else budget.windows
        epsilon = 1.0 if budget.epsilon is None else budget.epsilon
        Masked.check_terms(
            {"epsilon": epsilon, "delta": budget.delta, "budget_windows": windows}, unit="client"
        )
        self._budget = budget
        self._gaussian = None
        variance_of_sums = 0.0
        if budget.epsilon is not None:
            self._clip_squared, variance = sum_terms(
                epsilon, budget.delta, windows, window_readings, MASKED_AXES
            )
            self._gaussian = gaussian_noise(variance)
            certify(self._gaussian)
            variance_of_sums = float(budget.helpers * self._gaussian.variance)
        learnt = {
            **options,
            "noise_variance": variance_of_sums,
            "axes_per_window": MASKED_AXES,
        }
        super().__init__(learnt, width, n_clients, seed, window_readings, steps)
        self._rounds = 0
        self._left_out = 0
        """readings of clients whose budget was spent"""

    def restore(self, state: State) -> None:
        """Become the saved federation; this one has learnt nothing. Raises `InvalidState`."""
        saved = MaskedFederationState.read(state, {"d": self.width}, width=self.width)
        self._restore(saved)
        self._rounds = saved.rounds

    def _saved(self) -> MaskedFederationState:
        return MaskedFederationState(**vars(super()._saved()), rounds=self._rounds)

    def learn(
        self,
        rows: Floats,
        client_names: ArrayLike | None,
        is_last: bool = False,
        advance: Advance = to_the_end,
    ) -> None:
        """See `Federation.learn`; `is_last`: further rounds take all readings that wait."""
        left_out_before = self._left_out
        full = self._fill_windows(rows, client_names)
        self._n_rows += len(rows)
        waiting: dict[str, list[Floats]] = {}
        is_over = False
        for window in full:
            own = waiting.setdefault(window.client, [])
            own.append(window.readings)
            if len(own) > 1:
                is_over = advance(self._end_round(waiting))
            if is_over:
                break
        for name, own in waiting.items():
            client = self.client(name)
            client.readings = np.concatenate([*own, client.readings])
        while is_last and not is_over:
            last = self._take_windows()
            if not last:
                break
            is_over = advance(self._end_round(last))
        if is_last and not is_over:
            self._end_stream()
        self._warn(is_last, self._left_out - left_out_before)

    def _take_windows(self) -> dict[str, list[Floats]]:
        """A window, full or not, of every client that has readings."""
        size = self._window_readings
        taken = {}
        for name, client in self._clients.items():
            if len(client.readings):
                taken[name] = [client.readings[:size]]
                client.readings = client.readings[size:].copy()
        return taken

    def _fill_windows_of(self, name: str, rows: Floats, own: Indices) -> list[FullWindow]:
        """No window above the budget."""
        full = super()._fill_windows_of(name, rows, own)
        client = self.client(name)
        most = self._budget.windows
        if most is None or client.windows + len(full) < most:
            return full
        allowed = full[: most - client.windows]
        beyond = full[most - client.windows :]
        self._left_out += len(client.readings) + sum(len(window.readings) for window in beyond)
        client.readings = client.readings[:0]
        return allowed

    def _end_round(self, waiting: Mapping[str, list[Floats]]) -> int:
        """Add up the first window that waits of each client, and absorb the sum; how many readings
        it is of."""
        counted: list[CountedWindow] = []
        n_readings = 0
        for name, windows in sorted(waiting.items()):
            if windows:
                window = windows.pop(0)
                n_readings += len(window)
                counted.append(self._count(name, window))
        # Of whole numbers, so that the order of clients does not change the sum.
        exact: Ints = np.sum([window.counts for window in counted], axis=0)
        arrays = {
            **counted[0].update(self._with_noise(exact)),
            "places": np.array([n_readings], dtype=np.int64),
        }
        self._absorb(COHORT, self._rounds, arrays)
        self._rounds += 1
        return n_readings

    def _with_noise(self, total: Ints) -> Ints:
        """The sum of a round (n,) with the noise of all helpers."""
        if self._gaussian is None:
            return total
        # The seeds are a function of the exact sum, too: a round that is counted again with another
        # sum has other noise, so that the difference of both does not show the readings.
        exact = total.astype("<i8").tobytes()
        name = self._rounds.to_bytes(8, "little") + self._counter.plan_digest + exact
        for helper in range(self._budget.helpers):
            digest = hashlib.blake2b(name + bytes([helper]), key=self._key, person=b"masked sums")
            total = total + self._gaussian.draw(digest.digest(), len(total))
        return total

    def _count(self, name: str, window: Floats) -> CountedWindow:
        """The counts of a client's next window, cut off at the clip where there is noise."""
        client = self.client(name)
        public = name.encode()
        number = client.windows
        valid = np.ones(len(window), dtype=np.bool_)
        cohort = COHORT.encode(), self._rounds

        def counts_of(kept: Bools) -> CountedWindow:
            return self._counter.count(window, kept, public, number, cohort)

        client.windows += 1
        client.published += len(window)
        # All at once first: most windows are below the clip, and the search counts many times.
        whole = counts_of(valid)
        if self._gaussian is None or int(whole.counts @ whole.counts) <= self._clip_squared:
            return whole
        counted, _ = readings_within(
            counts_of, valid, clip_order(public, number, len(window)), self._clip_squared
        )
        return cast("CountedWindow", counted)

    def _warn(self, is_last: bool, left_out: int) -> None:
        if left_out:
            warn_user(
                f"{left_out} readings are left out: their clients have spent budget_windows = "
                f"{self._budget.windows}",
            )
        if is_last and self._gaussian is not None and len(self._clients) < CLIENTS_ADVISED:
            warn_user(
                f"sums over few clients, {len(self._clients)}: with fewer than {CLIENTS_ADVISED} "
                "the noise hides most clusters; clients=... of fit names the client of each row",
            )
