"""What the tables of a federation file have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """One section: unknown names are refused, values never change."""

    # Strict: a truth value is no number and a quoted number is a text. TOML says which is meant.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


Folder = Annotated[Path, Field(strict=False)]
"""a path; it stands as a text in TOML"""
