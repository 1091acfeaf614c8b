"""What the sections of a federation file have in common, and the small files they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from shoal.errors import SettingsError


class Settings(BaseModel):
    """One section: unknown names are refused, values never change."""

    # Strict: a truth value is no number and a quoted number is a text. TOML says which is meant.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


Folder = Annotated[Path, Field(strict=False)]
"""a path; it stands as a text in TOML"""


def text_of(file: Path, section: str) -> str:
    """What stands in a small file, such as a password. Raises `SettingsError`, without any of it."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"[{section}] {file}: cannot be read ({type(error).__name__}); name a file this user may read"
        ) from None
