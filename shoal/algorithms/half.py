"""A half of a streaming algorithm whose number of features is given, or fixed by the first rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from shoal.algorithms.options import AlgorithmOptions
from shoal.algorithms.streaming import State, check_dimensions
from shoal.saved_state import SavedState, Whole, state_type

Options = TypeVar("Options", bound=AlgorithmOptions)


@state_type
class HalfState(SavedState):
    """Base of the saved states of halves."""

    width: Annotated[int | None, Whole(least=1, size="d")]
    """number of features; None before any row came"""


SavedHalf = TypeVar("SavedHalf", bound=HalfState)


class Half(ABC, Generic[Options, SavedHalf]):
    """Options, the number of features, and saving and restoring of one half.

    A subclass keeps everything that it has learnt in attributes that `_reset` sets.
    """

    half: ClassVar[str]
    """name of the half, in a saved state"""
    options_type: type[Options]
    state_type: type[SavedHalf]

    def __init__(self, dimensions: int | None = None, **options: Any) -> None:
        """Raises `SettingsError` for options that the algorithm does not take."""
        check_dimensions(dimensions)
        self.options = self.options_type.parse(options)
        self._given_width = dimensions
        self._reset(dimensions)

    @abstractmethod
    def _reset(self, width: int | None) -> None:
        """Forget everything."""
        self._width = width

    @property
    def dimensions(self) -> int | None:
        """Features of a row; None before the first ones."""
        return self._width

    def state(self) -> State:
        """Everything that further learning depends on, as copies."""
        return self._state().saved(half=self.half, options=self.options.as_dict())

    def restore(self, state: State) -> None:
        """Become the saved half and continue bit for bit. Raises `InvalidState`; then nothing has
        changed."""
        sizes = {} if self._given_width is None else {"d": self._given_width}
        saved = self.state_type.read(state, sizes, half=self.half, options=self.options.as_dict())
        # Into a new half, so that a state that proves damaged halfway changes nothing.
        fresh = type(self)(self._given_width, **self.options.as_dict())
        fresh._reset(saved.width)
        fresh._restore_from(saved)
        vars(self).update(vars(fresh))

    @abstractmethod
    def _state(self) -> SavedHalf:
        """Everything that further learning depends on."""

    @abstractmethod
    def _restore_from(self, saved: SavedHalf) -> None:
        """Fill this empty half from a saved state. Raises `InvalidState`."""
