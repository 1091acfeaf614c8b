"""What all sections of a federation file have in common: strict values, and paths relative to the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from shoal.errors import SettingsError


class Settings(BaseModel):
    """One section: unknown names are refused, values never change."""

    # Strict: a truth value is no number and a quoted number is a text. TOML says which is meant.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


FilePath = Annotated[Path, Field(strict=False)]
"""a path to a file or folder; in TOML it is a text, relative to the federation file"""
Section = TypeVar("Section", bound=Settings)


def resolve_path(path: Path, file: Path) -> Path:
    """A relative path is relative to the federation file, wherever the process was started; ~ is a home folder.

    Raises `SettingsError` when there is no such home folder.
    """
    try:
        return file.parent / path.expanduser()
    except RuntimeError as unknown:
        raise SettingsError(f"{file}: {path}: {unknown}; write the whole path") from None


def resolve_paths(section: Section, file: Path) -> Section:
    """The section with all its paths resolved."""
    values = {name: getattr(section, name) for name in type(section).model_fields}
    paths = {name: resolve_path(value, file) for name, value in values.items() if isinstance(value, Path)}
    return section.model_copy(update=paths)
