"""Settings given in the environment: what differs from machine to machine need not stand in a file of its own.

`SHOAL_<SECTION>_<SETTING>` means what `setting = ...` under [section] of the federation file would mean, and wins
over it. The contract cannot be set this way: it is the same for everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from shoal.errors import SettingsError

PREFIX = "SHOAL"
OPTIONS = {
    "client": {"CONFIG", "NAME", "UNTIL_IDLE", "JSON", "VERBOSE"},
    "server": {"CONFIG", "UNTIL_IDLE", "NO_PAGE", "REBUILD", "TAKE_OVER", "JSON", "VERBOSE"},
}
"""section -> what the options of the command of the same name are called in the environment; no settings of it"""
AGREED = ("federation", "features", "privacy", "models")
"""the contract: the same for everybody, so in the file only"""


def environment_settings(environment: Mapping[str, str], section: str, form: type[BaseModel]) -> dict[str, Any]:
    """setting -> value, for those of `section` that stand in the environment.

    Raises `SettingsError`, naming the variable, for one that is no setting or whose value is out of range. An empty
    value is one that is not set: that is how compose files leave a variable out.
    """
    _refuse_agreed(environment)
    given: dict[str, Any] = {}
    prefix = f"{PREFIX}_{section}_".upper()
    for variable in sorted(environment):
        name = variable.removeprefix(prefix)
        if name == variable or name in OPTIONS.get(section, ()) or not environment[variable]:
            continue
        if name.lower() not in form.model_fields or not name.isupper():
            raise SettingsError(f"{variable}: no setting of [{section}]; unset it or mend its spelling")
        given[name.lower()] = _value(form, name.lower(), variable, environment[variable])
    return given


def _refuse_agreed(environment: Mapping[str, str]) -> None:
    for variable in sorted(environment):
        if variable.startswith(tuple(f"{PREFIX}_{section}_".upper() for section in AGREED)):
            raise SettingsError(f"{variable}: the contract stands in the federation file, the same for everybody")


def _value(form: type[BaseModel], name: str, variable: str, text: str) -> Any:
    """The text as the setting's type: `5` is a number here, as it has no other way to be one."""
    field = form.model_fields[name]
    try:
        kind: Any = Annotated[field.annotation, field]
        return TypeAdapter(kind).validate_strings(text)
    except ValidationError as wrong:
        said = wrong.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Input ")
        raise SettingsError(f"{variable}: {said}") from None
