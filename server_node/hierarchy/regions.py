"""The regions below this federation, as their updates name them."""

from __future__ import annotations

from typing import Any

from shoal.errors import InvalidState
from shoal.protocol.messages import Update
from shoal.protocol.regions import SEPARATOR, Region, RegionUpdate


class Regions:
    """The tree of regions: of each client that is a region what its newest update said."""

    def __init__(self) -> None:
        self._below: dict[str, list[Region]] = {}

    def take(self, update: Update) -> None:
        """An update has been processed."""
        if isinstance(update, RegionUpdate):
            self._below[update.client] = update.tree

    def all(self) -> list[Region]:
        """Every region, those below another one after it; sorted by name."""
        return [region for _, tree in sorted(self._below.items()) for region in tree]

    def below(self, federation: str) -> list[Region]:
        """The same, as they are seen from above this federation."""
        return [Region(f"{federation}{SEPARATOR}{path}", clients) for path, clients in self.all()]

    def __contains__(self, client: str) -> bool:
        return client in self._below

    def state(self) -> dict[str, list[list[Any]]]:
        """Plain values for `restore`."""
        return {client: [list(region) for region in tree] for client, tree in sorted(self._below.items())}

    def restore(self, state: dict[str, list[list[Any]]]) -> None:
        """Become the saved ones. Raises `InvalidState`."""
        try:
            self._below = {client: [Region(*region) for region in tree] for client, tree in state.items()}
        except (AttributeError, TypeError) as broken:
            raise InvalidState(f"the checkpoint's list of regions is damaged: {broken}") from None
