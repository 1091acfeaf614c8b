"""Three states, planted in two measured quantities, and files that hold them in the form of a
habit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.contract import parse_contract

CONTRACT = parse_contract(
    {
        "federation": {"name": "t"},
        "features": [{"name": name, "low": 0, "high": 100} for name in ("warm", "damp")],
        "privacy": {"mode": "off", "missing": "learn"},
        "models": [{"name": "m", "algorithm": "cluster_tree"}],
    }
)
STATES = ((14.0, 35.0), (21.0, 52.0), (28.0, 78.0))
OPTIONS: Mapping[str, Any] = {
    **{"encoding": None, "decimal": None, "na_values": (), "date_format": None, "timezone": None},
    **{"time_columns": (), "client_column": None, "name": None, "private": False},
    **{"concerns": None, "person_column": None, "helpers": (), "clients": None},
    "bad_quality": (),
}
"""the options of `shoal init`, none given"""


def planted(rows: int, seed: int = 1) -> dict[str, list[str]]:
    """(rows,) temperatures and humidities as a file has them; a state lasts 40 rows."""
    rng = np.random.default_rng(seed)
    state = np.repeat(rng.integers(3, size=1 + rows // 40), 40)[:rows]
    centres = np.array(STATES)[state]
    warm = centres[:, 0] + rng.normal(0, 0.5, rows)
    damp = centres[:, 1] + rng.normal(0, 1.5, rows)
    return {
        "temp": [f"{value:.2f}" for value in warm],
        "hum": [f"{value:.1f}" for value in damp],
    }


def written(
    file: Path, columns: Mapping[str, Sequence[Any]], delimiter: str = ",", header: bool = True
) -> Path:
    """A file with these columns."""
    lines = [delimiter.join(columns)] if header else []
    for row in zip(*columns.values(), strict=True):
        lines.append(delimiter.join(map(str, row)))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file
