"""What a model in rounds tells the metrics and the log; decides nothing."""

from __future__ import annotations

import logging
from typing import Literal

from shoal.config.contract import Model
from shoal.telemetry.events import log_event
from shoal.telemetry.metrics import ServerMetrics


class RoundMonitoring:
    """The rounds of one model, as operators see them."""

    def __init__(self, model: Model, metrics: ServerMetrics) -> None:
        self._model = model
        self._metrics = metrics

    def answered(self, became: Literal["in_time", "late", "too_late", "repeated"]) -> None:
        """An answer came: to the open round, to one that closed but counts with decay, to one too old, or once more."""
        self._metrics.round_answers.labels(model=self._model.name, result=became).inc()

    def opened(self, number: int, version: int) -> None:
        """Clients are called."""
        log_event("round_opened", model=self._model.name, round=number, version=version)

    def rejected(self, number: int, detail: str) -> None:
        """The answers of a round cannot be put together."""
        log_event("answers_rejected", logging.WARNING, model=self._model.name, round=number, detail=detail)

    def closed(self, number: int, by: str, answers: int, expected: int, shift: float, took_s: float) -> None:
        """A round is over and the parameters have moved by `shift`."""
        name = self._model.name
        self._metrics.round_duration.labels(algorithm=self._model.algorithm).observe(max(0.0, took_s))
        self._metrics.round.labels(model=name).set(number)
        self._metrics.round_counted.labels(model=name).set(answers)
        self._metrics.round_shift.labels(model=name).set(shift)
        log_event("round_closed", model=name, round=number, answers=answers, expected=expected, by=by, shift=shift)

    def drifted(self, number: int, shift: float) -> None:
        """A model that was at rest has found its clients' rows elsewhere."""
        log_event("drift_found", model=self._model.name, round=number, shift=shift)

    def sleeping(self, number: int, rounds: int, shift: float) -> None:
        """It has moved as far as it could."""
        log_event("model_asleep", model=self._model.name, round=number, rounds=rounds, shift=shift)

    def started_anew(self, clusters: int) -> None:
        """Another number of clusters is there now."""
        log_event("model_started_anew", model=self._model.name, clusters=clusters)
