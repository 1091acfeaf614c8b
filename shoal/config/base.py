"""Common parts of the tables of a federation file: reading TOML, checking a table, messages about
errors."""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from shoal.errors import SettingsError

NAME_PATTERN = r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?"
CLIENT_NAME_CHARS = 64
"""characters of the name that people are shown for a client"""
NAME_FORMAT = "1 to 64 of a-z, 0-9, - and _, not beginning or ending with - or _"
DAY_S = 86400.0
ERRORS_SHOWN_MAX = 10
TOML_BYTES_MAX = 4 << 20
"""largest TOML file: ten times one with as many features as a federation may have"""


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("contains a character that cannot be printed; remove it")
    return text


Name = Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")]
"""lower case letters, digits, hyphen and underscore: usable as a topic, a folder and a metric label
"""
Text = Annotated[str, AfterValidator(_printable)]
Number = Annotated[float, Field(strict=True)]
"""a float or an int as TOML writes it, neither quoted nor a truth value"""
Whole = Annotated[int, Field(strict=True)]
"""an int as TOML writes it"""
FilePath = Annotated[Path, Field(strict=False)]
"""a path to a file or folder; in TOML it is a string, relative to the federation file"""


class Table(BaseModel):
    """One table of a federation file. Unknown names are errors, and values do not change."""

    model_config = ConfigDict(
        # Neither infinity nor NaN: the digest of a contract is of its JSON, which has no such
        # numbers.
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        str_strip_whitespace=True,
        # Made when a table is first checked: some never are, and a nested one is made within its
        # table anyway.
        defer_build=True,
    )


class Settings(Table):
    """A table of settings of a process. TOML tells types apart: a truth value is no number, a
    quoted number is text."""

    model_config = ConfigDict(strict=True)


T = TypeVar("T", bound=BaseModel)
Section = TypeVar("Section", bound=Settings)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. Raises `SettingsError` with the place of the error."""
    try:
        with path.open("rb") as file:
            # One byte more than may be there: a path may name a device, which has no end.
            content = file.read(TOML_BYTES_MAX + 1)
        if len(content) > TOML_BYTES_MAX:
            raise SettingsError(
                f"{path}: has more than {TOML_BYTES_MAX >> 20} MiB; name the federation file"
            )
        return tomllib.loads(content.decode())
    except FileNotFoundError:
        raise SettingsError(
            f"{path}: no such file; `shoal check --example` prints one to start from"
        ) from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path}: not UTF-8 text at byte {error.start}; save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not TOML: {error}") from None
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read: {error.strerror}; name a file that this user may read"
        ) from None
    except (ValueError, RecursionError) as error:
        # Valid TOML beyond the limits of its parser: numbers of thousands of digits, thousands of
        # nested brackets.
        raise SettingsError(f"{path}: cannot be read: {error}") from None


def parse_table(form: type[T], table: dict[str, Any], source: str) -> T:
    """`table` as a `form`. Raises `SettingsError` in one line: where each error is and what would
    be right."""
    try:
        return form.model_validate(table)
    except ValidationError as error:
        # Without the input: it may be a secret, and errors are printed and logged.
        details = error.errors(include_url=False, include_input=False)
        # When the only entry of a list is wrong the list also counts as too short: the error of the
        # entry is enough.
        parents: set[tuple[int | str, ...]] = set()
        for detail in details:
            place = detail["loc"]
            parents.update(place[:depth] for depth in range(len(place)))
        lines = []
        for detail in details:
            if detail["loc"] not in parents:
                lines.append(_place(detail["loc"]) + error_message(detail))
        shown = "; ".join(lines[:ERRORS_SHOWN_MAX])
        if len(lines) > ERRORS_SHOWN_MAX:
            shown += f"; and {len(lines) - ERRORS_SHOWN_MAX} more"
        raise SettingsError(f"{source}: {shown}") from None


def resolve_path(path: Path, file: Path) -> Path:
    """A relative path is relative to the federation file, wherever the process was started; ~ is a
    home folder.

    Raises `SettingsError` when there is no such home folder.
    """
    try:
        return file.parent / path.expanduser()
    except RuntimeError as error:
        raise SettingsError(f"{file}: {path}: {error}; write the whole path") from None


def resolve_paths(section: Section, file: Path) -> Section:
    """The section with all its paths resolved."""
    paths = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Path):
            paths[name] = resolve_path(value, file)
    return section.model_copy(update=paths)


def check_client_name(name: str) -> str:
    """`name`, if it can be the name of a client: it is also a folder and a metric label. Raises
    `SettingsError`."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise SettingsError(f"client name {name!r}: {NAME_FORMAT}")
    return name


def client_name_of(text: str) -> str:
    """The valid name of the client that data call `text`: `text` itself, otherwise a similar name
    with a digest of it.

    The same text has the same name everywhere. A text that itself looks like a name with a digest
    gets one too, so two texts never share a name (short of a collision in 48 bits of SHA-256).
    """
    if not text:
        return "unnamed"
    if (
        # A text that looks like a name made below gets a digest as well: else two texts of data
        # could be one client.
        re.fullmatch(NAME_PATTERN, text)
        and text != "unnamed"
        and not re.search(r"-[0-9a-f]{12}$", text)
    ):
        return text
    # Bytes that are no UTF-8 are lone surrogates in a text, which a plain encoding refuses.
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{similar_name(text) or 'client'}-{digest}"


def shown_client_name(text: str) -> str:
    """The text that data have for a client as people are shown it: printable, and not too long."""
    printable = "".join(letter for letter in text if letter.isprintable())
    return printable.strip()[:CLIENT_NAME_CHARS].strip()


def given_client_name(text: str) -> str:
    """The valid name of the client that a person calls `text`; unlike data, people also give names
    with a digest."""
    if re.fullmatch(NAME_PATTERN, text):
        return text
    return client_name_of(text)


def similar_name(text: str) -> str:
    """A valid name that looks like the text, letters without their accents: "Werk Süd" ->
    "werk-sud"; may be empty."""
    import unicodedata  # noqa: PLC0415 - its tables take memory, and a client has its name

    plain = unicodedata.normalize("NFKD", text.lower().replace("ß", "ss"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    # 48 characters, a hyphen and 12 digits are within the 64 of a name.
    return re.sub(r"[^a-z0-9_]+", "-", plain)[:48].strip("-_")


_MESSAGES = {
    "missing": "is missing",
    "extra_forbidden": "unknown name; remove it or correct its spelling",
    "string_pattern_mismatch": f"must be {NAME_FORMAT}",
    "too_short": "at least {min_length} is needed",
    "too_long": "there are {actual_length}, at most {max_length} are possible",
    "tuple_type": "must be a list of tables, each under a line in double brackets",
    "model_type": "must be a table",
    "dict_type": "must be a table",
}


def error_message(detail: ErrorDetails) -> str:
    """The fault of a value, without the value."""
    message = _MESSAGES.get(detail["type"])
    if message is None:
        return detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return message.format(**detail.get("ctx", {}))


def _place(path: tuple[int | str, ...]) -> str:
    """The place of a value in a file, such as "models[2].name: "; positions of entries begin
    at 1."""
    if not path:
        return ""
    place = ""
    for part in path:
        if isinstance(part, int):
            place += f"[{part + 1}]"
        elif part == "federation":
            # A field of a contract, and in a file the name in its own table.
            place += ".federation.name"
        else:
            place += f".{part}"
    return f"{place.removeprefix('.')}: "
