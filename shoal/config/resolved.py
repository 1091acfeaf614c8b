"""The contract resolved: the privacy mode, and what the contract means for each model, derived and
checked once.

A process resolves its contract when it starts. Its stages take the resolved contract, or one
resolved model, and look nothing up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.algorithms.options import needs_another_model
from shoal.algorithms.registry import Algorithm, load_algorithm, streaming_names
from shoal.algorithms.streaming import Family, StreamingAlgorithm
from shoal.config.changes import Standing, standing_of
from shoal.config.contract import Contract, Feature, Model
from shoal.errors import SettingsError
from shoal.privacy.base import Bounds, PrivacyMode, Times, load_mode
from shoal.privacy.count_noise import CountNoise, certified_count_epsilon

if TYPE_CHECKING:
    from shoal.algorithms.counting import CountingAlgorithm
    from shoal.algorithms.rounds.base import RoundsAlgorithm
    from shoal.algorithms.rounds.policies import Policy

GIVEN_BY_CONTRACT: Final = {
    **dict.fromkeys(
        ("noise_variance", "window_readings", "axes_per_window", "windows_summed"), "[privacy]"
    ),
    "circular": "[[features]]",
}
"""options of algorithms that learn from counts which no contract may write -> the tables that they
follow from"""


NOISY_ROWS: Final = ""
"""what is published for all models of noisy rows, beside the names of streams of counts"""


@dataclass(frozen=True, kw_only=True)
class CountTerms:
    """The terms of a model that learns from private counts."""

    algorithm: CountingAlgorithm
    stream: str
    """name of the stream of counts that it learns from, which the ledger charges. Models whose
    algorithms count alike at the same epsilon publish the same private counts: they share a stream
    """
    noise: CountNoise | None
    """noise of each count; None: no noise"""


@dataclass(frozen=True, kw_only=True)
class RoundTerms:
    """The terms of a model in rounds."""

    algorithm: RoundsAlgorithm
    policy: Policy
    """answers that count besides those of a round"""
    clusters: Any
    """its option `clusters`: a number, "auto", a criterion, or None for an algorithm without this
    option"""

    @property
    def starts_from_another(self) -> bool:
        """Whether it waits for the clusters of its source: it takes them over, or chooses from its
        nodes."""
        return needs_another_model(self.clusters)


@dataclass(frozen=True, kw_only=True)
class ResolvedModel:
    """One model of a contract with its algorithm, and all that follows from the contract for it."""

    declared: Model
    """its entry in the contract"""
    algorithm: Algorithm
    options: Mapping[str, Any]
    """options as the halves of the algorithm take them: those of the contract, and the noise of
    counts"""
    statement: dict[str, Any]
    """privacy statement that every message of this model carries"""
    epsilon: float | None
    """guaranteed epsilon of a privacy unit in what is published for it; None without a guarantee"""
    mode: PrivacyMode
    target: int | None = None
    """position of the feature that it predicts; None for a model that predicts none"""
    counts: CountTerms | None = None
    """None for a model that learns from noisy rows"""
    rounds: RoundTerms | None = None
    """None for a streaming model"""

    @property
    def name(self) -> str:
        """Name of the model in topics, metrics and on the page."""
        return self.declared.name

    @property
    def family(self) -> Family:
        """Roles of clients and server for it."""
        return self.algorithm.family

    @property
    def streaming(self) -> StreamingAlgorithm:
        """Its algorithm, which must be a streaming one."""
        assert isinstance(self.algorithm, StreamingAlgorithm), f"{self.name} is a model in rounds"
        return self.algorithm

    @property
    def experimental(self) -> str:
        """What its algorithm does not do yet, of one whose options and results may still change;
        else empty."""
        if self.family.in_rounds:
            return ""
        return self.streaming.experimental

    @property
    def counts_places(self) -> bool:
        """Whether its updates count places, rejected readings included, as their numbers must not
        tell of validity.

        Else they count accepted readings. Windows of counts are of places in every mode.
        """
        return self.family.client_counts or (self.family.client_learns and self.mode.formal)

    @cached_property
    def epsilon_spent(self) -> float | None:
        """Epsilon that a privacy unit really costs, computed from the noise tables; None without a
        guarantee."""
        if not self.mode.formal:
            return None
        if self.counts is None or self.mode.masked:
            return self.mode.epsilon_spent()[0]
        if self.counts.noise is None:
            return None
        return certified_count_epsilon(self.counts.noise, self.mode.unit.readings_max)


@dataclass(frozen=True)
class Generation:
    """An earlier contract of the federation."""

    agreed: Contract
    standing: Mapping[str, Standing]
    """model -> what is left of it now"""

    @cached_property
    def contract(self) -> ResolvedContract:
        """The resolved contract, made when it is first needed. Raises `SettingsError`."""
        return resolve(self.agreed)


@dataclass(frozen=True, kw_only=True)
class ResolvedContract:
    """A contract with its privacy mode and its resolved models.

    >>> from shoal.config.contract import parse_contract
    >>> contract = resolve(parse_contract({
    ...     "federation": {"name": "plant"},
    ...     "features": [{"name": "temperature", "low": 0, "high": 40}],
    ...     "privacy": {"mode": "formal", "counts_epsilon": 2},
    ...     "models": [{"name": "heaps", "algorithm": "density_tree"}],
    ... }))
    >>> model = contract.models["heaps"]
    >>> model.family.name, model.counts.stream, model.epsilon, contract.total_epsilon
    ('counting', 'heaps', 2.0, 2.0)
    """

    contract: Contract
    digest: str
    bounds: Bounds
    """declared bounds of all features"""
    mode: PrivacyMode
    statement: dict[str, Any]
    """privacy statement of noisy rows"""
    models: Mapping[str, ResolvedModel]
    """models by name, in the order of the contract"""
    earlier: Mapping[str, Generation] = field(default_factory=dict)
    """digest -> earlier contract of the federation, oldest first"""

    def __reduce__(self) -> tuple[Callable[..., ResolvedContract], tuple[Contract, list[Contract]]]:
        """It travels between processes as its contracts, which are resolved again."""
        return resolve, (self.contract, [generation.agreed for generation in self.earlier.values()])

    def after(self, earlier: Sequence[Contract]) -> ResolvedContract:
        """The same after other contracts of the federation, oldest first."""
        if not earlier:
            return self
        standings = standing_of([*earlier, self.contract])
        generations = {}
        for agreed, standing in zip(earlier, standings, strict=True):
            generations[agreed.digest] = Generation(agreed, standing)
        return replace(self, earlier=generations)

    def standing(self, digest: str, model: str) -> Standing | None:
        """What a message made under the contract of this digest is to a model: of the `same` terms,
        of others after which the model began `anew`, or of a model that is `gone`. None: of no
        contract of this federation."""
        if digest == self.digest:
            return "same" if model in self.models else None
        if digest not in self.earlier:
            return None
        return self.earlier[digest].standing.get(model, "gone")

    @property
    def federation(self) -> str:
        """Name of the federation."""
        return self.contract.federation

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in the order of a reading."""
        return self.contract.features

    @property
    def width(self) -> int:
        """Numbers in one reading (d)."""
        return self.contract.width

    @property
    def stated_times(self) -> Times | None:
        """The times that updates state by the contract.

        None where they are always those of the readings, and where messages state none that depend
        on readings.
        """
        mode = self.mode
        if not mode.formal or mode.masked or mode.unit.hides_presence:
            return None
        return mode.times

    @property
    def learns_gaps(self) -> bool:
        """Whether a reading that lacks values of some features is learnt for those that it has."""
        return self.contract.learns_gaps

    @property
    def in_rounds(self) -> tuple[ResolvedModel, ...]:
        """The models whose server asks round by round."""
        return tuple(model for model in self.models.values() if model.family.in_rounds)

    @property
    def counted(self) -> tuple[ResolvedModel, ...]:
        """The models that learn from private counts."""
        return tuple(model for model in self.models.values() if model.family.client_counts)

    @property
    def takes_rows(self) -> bool:
        """Whether any model needs noisy rows."""
        return any(model.family.takes_rows for model in self.models.values())

    @property
    def rows_epsilon(self) -> float | None:
        """Guaranteed epsilon of a noisy row; None without a guarantee, and where no model needs
        rows."""
        if not self.takes_rows:
            return None
        return self.mode.epsilon_per_reading()

    @cached_property
    def total_epsilon(self) -> float | None:
        """What a privacy unit costs in all that is published: each stream of counts, and noisy rows
        once.

        None without a guarantee.
        """
        # By what is published: models share the noisy rows, and some a stream of counts.
        parts: dict[str, float | None] = {}
        for model in self.models.values():
            published = NOISY_ROWS if model.counts is None else model.counts.stream
            parts[published] = model.epsilon
        epsilons = [epsilon for epsilon in parts.values() if epsilon is not None]
        if len(epsilons) < len(parts):
            return None
        return self.mode.sum_of_epsilons(epsilons)

    @property
    def experimental(self) -> dict[str, str]:
        """Name of each model with an algorithm that may still change -> what the algorithm says of
        that."""
        texts = {name: model.experimental for name, model in self.models.items()}
        return {name: text for name, text in texts.items() if text}

    @cached_property
    def epsilon_spent(self) -> tuple[float, float]:
        """Epsilon that a privacy unit really costs in all that is published, and that it may cost.

        Both are infinite without a guarantee. The first is computed from the noise tables
        themselves.
        """
        if not self.mode.formal:
            return math.inf, math.inf
        # Declared terms of rows count even where no model learns from rows.
        parts = {NOISY_ROWS: 0.0}
        if self.mode.epsilon_per_reading() is not None:
            parts[NOISY_ROWS] = self.mode.epsilon_spent()[0]
        for model in self.counted:
            if model.counts is not None and model.epsilon_spent is not None:
                parts[model.counts.stream] = model.epsilon_spent
        return self.mode.sum_of_epsilons(list(parts.values())), self.total_epsilon or 0.0


def resolve(contract: Contract, earlier: Sequence[Contract] = ()) -> ResolvedContract:
    """The resolved contract; its models and their options are valid. Raises `SettingsError`.

    `earlier`: those that the federation had before, oldest first.
    """
    privacy = contract.privacy
    bounds = contract.bounds
    shares = [feature.share for feature in contract.features]
    kind = load_mode(privacy.mode)
    masking: dict[str, Any] = {}
    if kind.masked:
        masking = {
            "helpers": privacy.helper_terms,
            "window_readings": privacy.window_readings,
        }
    mode = kind(
        bounds, privacy.terms, shares, privacy.counts_epsilon, privacy.privacy_unit, **masking
    )
    mode.missing = privacy.missing
    mode.times = privacy.times
    models: dict[str, ResolvedModel] = {}
    for declared in contract.models:
        with _naming(declared):
            models[declared.name] = _resolve_model(contract, mode, declared)
    for model in models.values():
        with _naming(model.declared):
            # Once all are known: a source may be declared further down.
            _check_start(model, models)
    return ResolvedContract(
        contract=contract,
        digest=contract.digest,
        bounds=bounds,
        mode=mode,
        statement=mode.statement(),
        models=models,
    ).after(earlier)


@contextmanager
def _naming(declared: Model) -> Iterator[None]:
    """Puts the name of the model before the message of an error."""
    try:
        yield
    except SettingsError as error:
        raise SettingsError(f"models.{declared.name}: {error}") from None


def _resolve_model(contract: Contract, mode: PrivacyMode, declared: Model) -> ResolvedModel:
    algorithm = load_algorithm(declared.algorithm)
    if algorithm.family.client_counts:
        # By its family: its class is loaded only where there is a model of it.
        counting = cast("CountingAlgorithm", algorithm)
        return _resolve_counting(contract, mode, declared, counting)
    _check_learns_from_rows(contract, mode, declared)
    if not isinstance(algorithm, StreamingAlgorithm):
        return _resolve_rounds(contract, mode, declared, algorithm)
    _check_has_no_rounds(declared)
    # Made and dropped: what does not fit is refused here, and not when a node starts.
    algorithm.server(declared.options, contract.width)
    algorithm.client(declared.options, contract.width)
    return _model_of_rows(mode, declared, algorithm)


def _resolve_counting(
    contract: Contract, mode: PrivacyMode, declared: Model, algorithm: CountingAlgorithm
) -> ResolvedModel:
    privacy = contract.privacy
    epsilon = declared.counts_epsilon
    if epsilon is None:
        epsilon = privacy.counts_epsilon
    noise = mode.count_noise(epsilon)
    if privacy.window_readings > declared.readings_max:
        raise SettingsError(
            f"readings_max must be at least window_readings, {privacy.window_readings}"
        )
    _check_has_no_rounds(declared)
    for name, tables in GIVEN_BY_CONTRACT.items():
        if name in declared.options:
            raise SettingsError(f"{name} follows from {tables}; leave it out")
    options = {
        **declared.options,
        "noise_variance": mode.counts_variance(epsilon),
        "window_readings": privacy.window_readings,
    }
    if mode.masked and algorithm.samples_axes:
        options["axes_per_window"] = int(mode.values["axes"])
    if mode.masked and algorithm.readings_needed is not None:
        options["windows_summed"] = int(mode.values["batch_min"])
    if algorithm.joins_ends and mode.bounds.circular:
        options["circular"] = ",".join(map(str, mode.bounds.circular))
    algorithm.server(options, contract.width)
    algorithm.counter(options, contract.width)
    stream = declared.name
    # In rounds of its own, as masked counts have, every model asks for counts of its own.
    if algorithm.stream is not None and not mode.masked:
        stream = _shared_stream(algorithm.stream, epsilon)
    return ResolvedModel(
        declared=declared,
        algorithm=algorithm,
        options=options,
        statement=mode.count_statement(epsilon, privacy.window_readings),
        epsilon=mode.counts_epsilon_of(epsilon),
        mode=mode,
        counts=CountTerms(algorithm=algorithm, stream=stream, noise=noise),
    )


def _shared_stream(name: str, epsilon: float | None) -> str:
    """The stream of all models whose algorithms count alike at this epsilon.

    No model has a name with a colon, so it is never taken for the stream of one model.
    """
    if epsilon is None:
        return f"{name}:none"
    # Exact: two epsilons that are printed alike at six digits have noise of their own.
    return f"{name}:{repr(float(epsilon)).removesuffix('.0')}"


def _resolve_rounds(
    contract: Contract, mode: PrivacyMode, declared: Model, algorithm: RoundsAlgorithm
) -> ResolvedModel:
    from shoal.algorithms.rounds.policies import Policy  # noqa: PLC0415 - loaded only for rounds

    options = declared.options
    rounds = declared.rounds
    algorithm.check(options)
    algorithm.check_features(contract.width)
    target = _target(contract, declared, algorithm)
    if target is not None and contract.learns_gaps:
        raise SettingsError(
            f"{declared.algorithm} predicts a feature, and cannot learn it from readings that may "
            'lack it: take missing = "drop" or "hold" in [privacy]'
        )
    kind = rounds.between
    if not kind:
        # On a stream the answers of one round alone lose the clusters of clients that are absent.
        kind = "decay" if algorithm.additive else "cache"
    policy = Policy(kind, rounds.decay, rounds.cache_rounds, rounds.late_rounds, rounds.robust)
    policy.check(algorithm, options)
    clusters = options.get("clusters", algorithm.options.defaults().get("clusters"))
    terms = RoundTerms(algorithm=algorithm, policy=policy, clusters=clusters)
    return _model_of_rows(mode, declared, algorithm, target, terms)


def _model_of_rows(
    mode: PrivacyMode,
    declared: Model,
    algorithm: Algorithm,
    target: int | None = None,
    rounds: RoundTerms | None = None,
) -> ResolvedModel:
    """A model that learns from noisy rows; all such models share the rows, and so their statement
    and epsilon."""
    return ResolvedModel(
        declared=declared,
        algorithm=algorithm,
        options=dict(declared.options),
        statement=mode.statement(),
        epsilon=mode.epsilon_per_reading(),
        mode=mode,
        target=target,
        rounds=rounds,
    )


def _target(contract: Contract, declared: Model, algorithm: RoundsAlgorithm) -> int | None:
    """The position of the feature that the model predicts; None for a model that predicts none."""
    if algorithm.regression is None:
        return None
    if contract.width < 2:
        raise SettingsError(
            f"{declared.algorithm} predicts one feature from others, and there is only one"
        )
    names = [feature.name for feature in contract.features]
    return algorithm.regression.target(declared.options, contract.width, names)


def _check_learns_from_rows(contract: Contract, mode: PrivacyMode, declared: Model) -> None:
    """Raises `SettingsError` for a model of noisy rows under terms that are for counts alone."""
    if mode.masked:
        raise SettingsError(
            f'{declared.algorithm} learns from rows, and with mode = "{mode.name}" only sums of '
            "counts leave a client: take models that learn from counts, such as density_tree"
        )
    if contract.privacy.unit == "user":
        raise SettingsError(
            f"{declared.algorithm} learns from noisy rows, which protect readings one by one: "
            'with unit = "user" take models that learn from counts, such as density_tree'
        )
    if contract.privacy.hide_presence:
        raise SettingsError(
            f"{declared.algorithm} learns from noisy rows, whose number is published: with "
            "hide_presence take models that learn from counts, such as density_tree"
        )
    if declared.counts_epsilon is not None:
        raise SettingsError(
            f"{declared.algorithm} learns from noisy rows, which all such models share; its "
            "epsilon is epsilon_per_reading of [privacy]"
        )
    # Without `counts_epsilon`, with which the terms of rows may be left out.
    mode.check_terms(contract.privacy.terms)


def _check_has_no_rounds(declared: Model) -> None:
    if "rounds" in declared.model_fields_set:
        raise SettingsError(f"{declared.algorithm} has no rounds; leave out [models.rounds]")
    if declared.source is not None:
        raise SettingsError(f"{declared.algorithm} starts from no other model; leave out source")


def _check_start(model: ResolvedModel, models: Mapping[str, ResolvedModel]) -> None:
    """Raises `SettingsError` for a source that is no streaming model, and for a model that needs
    one and names none."""
    if model.rounds is None:
        return
    source = model.declared.source
    clusters = model.rounds.clusters
    sources = [name for name, other in models.items() if not other.family.in_rounds]
    named = " or ".join(f'"{name}"' for name in sources)
    if source is not None:
        if clusters is None:
            raise SettingsError(
                f"{model.declared.algorithm} starts from no other model; leave out source"
            )
        if source not in sources:
            raise SettingsError(
                f'source = "{source}", must be a streaming model of this file: '
                f"{named or 'there is none'}"
            )
    elif model.rounds.starts_from_another:
        cure = f"add one of {', '.join(streaming_names())} and name it as source"
        if sources:
            cure = f"name it: source = {named}"
        raise SettingsError(
            f'clusters = "{clusters}" starts from the clusters of another model: {cure}; or give a '
            "number"
        )
