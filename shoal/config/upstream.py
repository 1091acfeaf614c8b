"""Loads the upstream federation of a region, and checks that what the region learns fits there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from shoal.config.contract import Contract, Model
from shoal.config.resolved import ResolvedContract
from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError


class Upstream(NamedTuple):
    """The upstream federation of a region."""

    config: Config
    """its file, as its clients have it"""
    contract: ResolvedContract
    models: tuple[str, ...]
    """names of the models that both federations have: those that the region contributes to"""

    def model(self, name: str) -> Model:
        """A model of both federations, as the upstream one has it."""
        found = self.config.contract.model(name)
        assert found is not None, "one of the models of both"
        return found

    def summary(self) -> dict[str, Any]:
        """What `shoal check` says of it."""
        contract = self.config.contract
        return {
            "federation": contract.federation,
            "digest": contract.digest,
            "models": list(self.models),
        }


def load_upstream(config: Config) -> Upstream | None:
    """The upstream federation of this one; None if it has none.

    Raises `SettingsError` for a file that is wrong, for federations in a circle, and for contracts
    that do not fit: the features and [privacy] must be the same, and so must each model of a name
    that both have.
    """
    if config.upstream.file is None:
        return None
    upstream = load_config(config.upstream.file)
    region = config.contract
    above = upstream.resolved
    _check_no_circle(region.federation, upstream, config.upstream.file)
    differences = [*_common_differences(region, above), *_model_differences(region, above)]
    if differences:
        raise SettingsError(
            f"[upstream]: {region.federation} cannot be a region of {above.federation}: "
            f"{'; '.join(differences)}"
        )
    return Upstream(upstream, above, tuple(_common_models(region, above)))


def _check_no_circle(federation: str, upstream: Config, file: Path) -> None:
    """Raises `SettingsError` if the federations above, as far as their files are here, lead back to
    this one."""
    path = [federation]
    while True:
        path.append(upstream.contract.federation)
        if path[-1] in path[:-1]:
            raise SettingsError(
                f"[upstream]: {' -> '.join(path)} is a circle, in which readings would count "
                f"again and again; name a federation in {file} that is not below {federation}, or "
                "give each federation a name of its own"
            )
        if upstream.upstream.file is None or not upstream.upstream.file.exists():
            return
        upstream = load_config(upstream.upstream.file)


def _common_models(region: Contract, above: ResolvedContract) -> Iterator[str]:
    return (model.name for model in region.models if model.name in above.models)


def _common_differences(region: Contract, above: ResolvedContract) -> Iterator[str]:
    """Differences in features and privacy, in words."""
    own = {feature.name: feature for feature in region.features}
    other = {feature.name: feature for feature in above.features}
    if list(own) != list(other):
        yield f"its features are {', '.join(own)}, there they are {', '.join(other)}"
    else:
        for name, feature in own.items():
            yield from _fields_that_differ(
                f"feature {name}", feature.model_dump(), other[name].model_dump()
            )
    own_terms = region.privacy.model_dump()
    terms_above = above.contract.privacy.model_dump()
    if above.mode.masked and region.privacy.mode == above.mode.name:
        helpers = own_terms.pop("helpers")
        # By a rule of their own: the upstream federation names helpers of all its regions.
        yield from _helpers_that_differ(region, helpers, terms_above.pop("helpers"))
    yield from _fields_that_differ("[privacy]", own_terms, terms_above)


def _helpers_that_differ(
    region: Contract, own: list[dict[str, Any]], above: list[dict[str, Any]]
) -> Iterator[str]:
    """Helpers that the region's clients trust and the upstream federation does not name, in
    words."""
    if any(helper["region"] is not None for helper in own):
        yield "it has regions itself, and with masked counts a region has clients alone"
    name = region.federation
    trusted = {(helper["name"], helper["key"]) for helper in own}
    of_region = [helper for helper in above if helper["region"] == name]
    if trusted != {(helper["name"], helper["key"]) for helper in of_region}:
        names = sorted(helper_name for helper_name, _ in trusted)
        yield (
            f'[[privacy.helpers]] there with region = "{name}" must be those of {name}, which are '
            f"{', '.join(names)}: with the same names and keys, so that the upstream contract "
            "names whom the clients of the region trust"
        )


def _model_differences(region: Contract, above: ResolvedContract) -> Iterator[str]:
    """Differences in the models of both, in words."""
    names = list(_common_models(region, above))
    if not names:
        yield (
            "no model has the same name in both; the region contributes to models of the same name"
        )
    for name in names:
        own = region.model(name)
        other = above.models[name].declared
        assert own is not None
        if own.algorithm == other.algorithm and not above.models[name].algorithm.aggregates:
            yield (
                f"model {name}: a region cannot contribute to {own.algorithm} "
                "(docs/explanation/hierarchy.md); give the region's model another name, and it "
                "stays in the region"
            )
        # Only a model in rounds can have set it.
        if own.rounds.robust != "none":
            yield (
                f'model {name}: robust is "{own.rounds.robust}", but a region adds up the answers '
                "of its clients; leave it out, and set it in the upstream federation, where it "
                "compares regions"
            )
        yield from _fields_that_differ(f"model {name}", _agreed(own), _agreed(other))
        if own.readings_max > other.readings_max:
            yield (
                f"model {name}: readings_max is {own.readings_max}, above {other.readings_max} "
                "there"
            )


def _agreed(model: Model) -> dict[str, object]:
    """What a region's model must have in common with the one that it contributes to."""
    return {
        "algorithm": model.algorithm,
        "options": model.options,
        "counts_epsilon": model.counts_epsilon,
    }


def _fields_that_differ(
    what: str, own: dict[str, object], other: dict[str, object]
) -> Iterator[str]:
    for name in sorted(own.keys() | other.keys()):
        if own.get(name) != other.get(name):
            yield f"{what}: {name} is {own.get(name)}, there it is {other.get(name)}"
