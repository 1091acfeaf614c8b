"""Limits what one person spends, and charges what was released to the ledger.

Whether the limit is reached depends on numbers of places alone, so that it tells nothing about a
reading.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from pathlib import Path
from typing import Any

from shoal.client_nodes.count_windows import CountWindows
from shoal.config.resolved import ResolvedContract
from shoal.config.sections import ClientSettings
from shoal.errors import SettingsError
from shoal.privacy import PrivacyMode
from shoal.privacy.ledger import NANO, Ledger, Noised, Spending, nano
from shoal.runtime.checkpoint import pairs_of, positions_of
from shoal.saved_state import SavedState, require, state_type
from shoal.telemetry.events import log_event
from shoal.transports.base import Positions


class Budget:
    """How many places of the readings log a client may still release under `[client] epsilon_max`.

    Every place that is allowed counts as spent at once, and again when it is read again after a
    kill: the limit is never passed, and may be reached a batch early.
    """

    def __init__(
        self, contract: ResolvedContract, settings: ClientSettings, ledger: Ledger | None
    ) -> None:
        """Raises `SettingsError` for a limit where nothing is guaranteed."""
        self._limit = settings.epsilon_max
        self._action = settings.at_epsilon_max
        self._readings = settings.person_readings or None
        self._reached = False
        self._spending = Spending([], None, [])
        unit = contract.mode.unit
        privacy = contract.contract.privacy
        self._by_window = unit.is_user or unit.hides_presence
        """whether the number of windows alone decides what is spent: a user spends once for each"""
        self._window_units = 1 if unit.is_user else privacy.window_readings
        """number of times that one person can spend in a window then"""
        self._windows: CountWindows | None = None
        self._windows_before = 0
        """windows closed when the ledger was read, which it has charged"""
        self._ledger = ledger
        self._others = 0
        """billionths that a person has spent at most by other accounts of the ledger"""
        self._others_version = -1
        """version of the ledger that says so"""
        # Models that learn from the same stream of counts share its noise: it is charged once.
        epsilon_of_stream: dict[str, float] = {}
        for model in contract.counted:
            if model.counts is not None:
                epsilon_of_stream[model.counts.stream] = model.epsilon or 0.0
        self._counts_cost = sum(nano(epsilon) for epsilon in epsilon_of_stream.values())
        self._rows_epsilon = contract.rows_epsilon or 0.0
        if self._limit:
            self._check_limit(contract)

    def _check_limit(self, contract: ResolvedContract) -> None:
        if contract.mode.masked:
            raise SettingsError(
                "[client] epsilon_max is not for masked counts, which protect all that a client"
                " publishes together: set budget_epsilon and budget_days in [privacy]"
            )
        if self._ledger is None or contract.total_epsilon is None:
            raise SettingsError(
                "[client] epsilon_max limits what a person spends, and this federation guarantees"
                ' nothing; leave it out, or choose mode = "formal"'
            )
        if contract.mode.unit.hides_presence and self.pauses:
            raise SettingsError(
                '[client] at_epsilon_max = "pause" cannot be with hide_presence: windows go by with'
                " the clock, so that readings that wait would be counted in none. Write"
                ' at_epsilon_max = "refuse"'
            )

    @property
    def pauses(self) -> bool:
        """Whether a client reads no more at its limit; else it reads on, and releases nothing more
        where it has one."""
        return bool(self._limit) and self._action == "pause"

    def allows_window(self) -> bool:
        """Whether the limit allows the open window, where the number of windows alone decides."""
        if not self._limit or not self._by_window:
            return True
        return self._spent_with(0) <= self._limit and self.claim(0)

    def claim(self, places: int) -> bool:
        """Whether this many places that were read may be released, by the ledger, which notes it.

        False where another federation of the site has spent or claimed the rest of the limit
        meanwhile.
        """
        if not self._limit or self._ledger is None:
            return True
        # Read anew next time: by then another federation may have claimed as well.
        self._others_version = -1
        return self._ledger.claim(nano(self._own_with(places)), nano(self._limit), self._readings)

    def resume(self, ledger: Ledger | None, windows: CountWindows) -> None:
        """Begin with what the ledger holds, and the open window, which is not charged yet."""
        if self._limit and ledger is not None:
            self._spending = ledger.spending()
            self._windows = windows
            self._windows_before = windows.closed
            if not self._by_window:
                # They are charged when their window closes, and until then count as spent.
                self._spending = self._with(0, windows.open_places)

    def allowance(self, places: int) -> int:
        """Number of the next `places` that may be released. Logs once that the limit is reached."""
        if not self._limit:
            return places
        self._read_others()
        # The most places with which a person has not spent more than the limit; -1 where one has
        # already. Found by bisection, as the spending never falls with more places.
        allowed = bisect_right(range(places + 1), self._limit, key=self._spent_with) - 1
        if allowed <= 0 and not self._reached:
            spent = self._spent_with(0)
            log_event(
                "epsilon_max_reached",
                logging.WARNING,
                epsilon=spent,
                epsilon_max=self._limit,
                action=self._action,
            )
        self._reached = allowed <= 0
        return max(0, allowed)

    def reserve(self, places: int) -> None:
        """Count this many more places as released."""
        if self._limit and places and not self._by_window:
            self._spending = self._with(places, places)

    def _read_others(self) -> None:
        """Other federations may charge the same readings meanwhile."""
        if self._ledger is None:
            return
        version = self._ledger.version()
        if version != self._others_version:
            self._others_version = version
            self._others = self._ledger.spent_by_others(self._readings)

    def _spent_with(self, places: int) -> float:
        """Most that a person will have spent, by all accounts, with this many more places."""
        return self._others / NANO + self._own_with(places)

    def _own_with(self, places: int) -> float:
        """The same by this account."""
        if self._windows is None or not self._by_window:
            return self._with(places, places).of_person(self._readings)
        begun = (self._windows.begun_with(places) - self._windows_before) * self._window_units
        return self._with(0, begun).of_person(self._readings)

    def _with(self, rows: int, counted: int) -> Spending:
        """The spending with this many more noisy rows, and counted places or windows."""
        before = self._spending.rows or Noised(0, self._rows_epsilon)
        windows = dict(self._spending.windows)
        windows[self._counts_cost] = windows.get(self._counts_cost, 0) + counted
        return Spending(
            self._spending.models,
            Noised(before.places + rows, self._rows_epsilon),
            # The dearest windows first: what one person can have spent is counted from these.
            sorted(windows.items(), reverse=True),
        )


def check_ledger_counts(file: Path, mode: PrivacyMode, *, has_ledger: bool) -> None:
    """Raises `SettingsError` where a client has a ledger, and `mode` has nothing to count."""
    if not mode.formal and has_ledger:
        raise SettingsError(
            f'{file} counts what is spent of these readings, and mode = "{mode.name}" guarantees'
            " nothing, so that no ledger could count it; give this federation readings of its own"
        )


@state_type
class RowChargesState(SavedState):
    """Which places of the readings log are charged."""

    charged: list[list[int]]
    """[partition, first place that is not charged]"""
    open: list[list[int]]
    """[partition, first, stop] of the places that are not charged yet"""

    def check(self) -> None:
        for span in self.open:
            require(len(span) == 3, "a span of places is a partition and two places")


class RowCharges:
    """The places of the readings log whose noisy rows are charged.

    They are charged before anything made from them is published.
    """

    def __init__(self, ledger: Ledger | None, epsilon: float | None) -> None:
        """`epsilon` of a row; None where no row is made, or nothing is guaranteed.

        Without a ledger nothing is charged.
        """
        self._ledger = ledger
        self._epsilon = epsilon
        self._open: dict[int, tuple[int, int]] = {}
        """partition -> (first, stop) of the places whose rows were made since the last charge"""
        self._charged: Positions = {}
        """partition -> the first place that is not charged"""

    def add(self, before: Positions, after: Positions) -> None:
        """The rows of the places between these positions were made."""
        if self._epsilon is None:
            return
        for partition, stop in after.items():
            first = self._open.get(partition, (before.get(partition, stop), stop))[0]
            if first < stop:
                self._open[partition] = first, stop

    def charge(self) -> None:
        """Charge what was made since the last charge; it is on the disk when this returns."""
        if self._ledger is None or self._epsilon is None or not self._open:
            return
        # Before what is charged is noted here: after a kill it is charged again, which costs
        # nothing.
        self._ledger.charge_rows(self._open, self._epsilon)
        for partition, (_, stop) in self._open.items():
            self._charged[partition] = stop
        self._open = {}

    def state(self) -> dict[str, Any]:
        """Plain values for `restore`."""
        # In the order of partitions: equal charges must be equal bytes.
        spans = [[partition, *self._open[partition]] for partition in sorted(self._open)]
        return RowChargesState(charged=pairs_of(self._charged), open=spans).saved()

    def restore(self, state: Any) -> None:
        """Raises `InvalidState`, also when the ledger lacks what the checkpoint has charged."""
        saved = RowChargesState.read(state)
        self._charged = positions_of(saved.charged)
        self._open = {partition: (first, stop) for partition, first, stop in saved.open}
        if self._ledger is not None:
            self._ledger.check_rows(self._charged)
