"""States in time: the ways in which a stream goes on for a while, found without labels.

`StateLearner` learns one stream in bounded memory; its docstring has the whole method. It is what
the estimator `shoal.States` learns with.
"""

from __future__ import annotations

from shoal.algorithms.states.learner import Route, StateFigures, StateLearner
from shoal.algorithms.states.timeline import NO_STATE

__all__ = ["NO_STATE", "Route", "StateFigures", "StateLearner"]
