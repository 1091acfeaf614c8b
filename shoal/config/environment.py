"""Settings from environment variables, for what differs from machine to machine.

`SHOAL_<SECTION>_<SETTING>` means the same as `setting = ...` in [section] of the federation file, and wins over it. The
contract cannot be set this way, as it is the same for all clients and servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from shoal.config.base import error_message
from shoal.errors import SettingsError

PREFIX = "SHOAL"
OPTIONS = {
    "client": {"CONFIG", "NAME", "UNTIL_IDLE", "JSON", "VERBOSE"},
    "events": {"LIST_CONFIG", "LIST_MODEL", "LIST_FOLLOW", "LIST_JSON"}
    | {"FORWARD_CONFIG", "FORWARD_UNTIL_IDLE", "FORWARD_JSON"},
    "privacy": {"REPORT_CONFIG", "REPORT_NAME", "REPORT_READINGS", "REPORT_WINDOWS", "REPORT_JSON"}
    | {"AUDIT_CONFIG", "AUDIT_TRIALS", "AUDIT_KILLS", "AUDIT_SEED", "AUDIT_JSON"},
    "replica": {"CONFIG", "NAME", "JSON", "VERBOSE"},
    "server": {"CONFIG", "UNTIL_IDLE", "NO_PAGE", "REBUILD", "TAKE_OVER", "JSON", "VERBOSE"},
}
"""section -> options of the command of the same name: their variables have the same prefix but are no settings"""
CONTRACT_TABLES = ("federation", "features", "privacy", "models")


def environment_settings(environment: Mapping[str, str], section: str, form: type[BaseModel]) -> dict[str, Any]:
    """setting -> value, for the settings of `section` that are in the environment.

    An empty variable counts as unset, because compose files leave variables out that way. Raises `SettingsError`,
    naming the variable, if it is no setting or its value is out of range.
    """
    _reject_contract(environment)
    given: dict[str, Any] = {}
    prefix = f"{PREFIX}_{section}_".upper()
    for variable in sorted(environment):
        name = variable.removeprefix(prefix)
        if name == variable or name in OPTIONS.get(section, ()) or not environment[variable]:
            continue
        if name.lower() not in form.model_fields or not name.isupper():
            raise SettingsError(f"{variable}: no setting of [{section}]; unset it or correct its spelling")
        given[name.lower()] = _value(form, name.lower(), variable, environment[variable])
    return given


def _reject_contract(environment: Mapping[str, str]) -> None:
    for variable in sorted(environment):
        prefix, _, rest = variable.partition("_")
        table, _, name = rest.partition("_")
        if prefix == PREFIX and table.lower() in CONTRACT_TABLES and name not in OPTIONS.get(table.lower(), ()):
            raise SettingsError(
                f"{variable}: the contract is set in the federation file only, as it is the same on every machine"
            )


def _value(form: type[BaseModel], name: str, variable: str, text: str) -> Any:
    """The text converted to the type of the setting: `5` is a number if the setting is one, `a,b` a list."""
    field = form.model_fields[name]
    if get_origin(field.annotation) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        kind: Any = Annotated[field.annotation, field]
        return TypeAdapter(kind).validate_strings(text)
    except ValidationError as error:
        message = error_message(error.errors(include_url=False, include_input=False)[0])
        raise SettingsError(f"{variable}: {message}") from None
