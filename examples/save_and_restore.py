"""A model's state as bytes: plain values and arrays with a version, never a pickle."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from shoal import FCAC
from shoal.protocol.codec import pack, unpack


def main() -> None:
    """Learn half of a stream, save, restore into a new model, and go on with the other half."""
    rows = np.random.default_rng(0).normal(size=(2000, 3))
    file = Path(tempfile.mkdtemp()) / "model.shoal"
    file.write_bytes(pack(FCAC().partial_fit(rows[:1000]).state()))
    print(f"saved {file.stat().st_size} bytes")

    model = FCAC()
    model.restore(unpack(file.read_bytes()))
    model.partial_fit(rows[1000:])
    uninterrupted = FCAC().partial_fit(rows[:1000]).partial_fit(rows[1000:])
    same = bool((model.predict(rows) == uninterrupted.predict(rows)).all())
    print("the same clusters as a model that was never saved:", same)


if __name__ == "__main__":
    main()
