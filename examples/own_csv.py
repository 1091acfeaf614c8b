"""A CSV file of one's own, from the file to labels and a picture, with shoal's commands.

python examples/own_csv.py            # makes readings.csv first: two weeks of a room, a reading
every five minutes python examples/own_csv.py mine.csv
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np


def make_readings(file: Path) -> None:
    """Two weeks of temperature, CO2 and light in a room: empty at night, used by day."""
    rng = np.random.default_rng(0)
    start = datetime(2026, 3, 2, tzinfo=UTC)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["time", "temperature (°C)", "CO2 (ppm)", "light (lux)"])
        for number in range(14 * 24 * 12):
            moment = start + timedelta(minutes=5 * number)
            is_used = moment.weekday() < 5 and 8 <= moment.hour < 18
            values = rng.normal(
                (22.5, 850, 480) if is_used else (19.0, 430, 15),
                (0.4, 50, 12) if is_used else (0.3, 10, 4),
            )
            writer.writerow([moment.isoformat(), *np.maximum(values, 0).round(1)])


def shoal(*words: str | Path) -> None:
    """Run one command, and show what it prints."""
    print("$ shoal", *words)
    subprocess.run([Path(sys.executable).parent / "shoal", *words], check=True)


def main(data: Path) -> None:
    """The five commands, and what the labels say."""
    if not data.exists():
        make_readings(data)
    federation = data.with_suffix(".toml")
    shoal("init", data, "--private")
    shoal("run", federation, data, "--no-browser", "--no-wait")
    clients = sorted(
        path.name for path in (data.with_suffix("") / "clients").iterdir() if path.is_dir()
    )
    labels = data.with_name("labels.csv")
    shoal("labels", "export", "--config", federation, "--name", clients[0], "--out", labels)
    shoal("picture", "--config", federation, "--out", data.with_name("clusters.png"))
    shoal("snapshot", "export", "--config", federation, "--out", data.with_name("clusters.json"))
    with labels.open(encoding="utf-8") as stream:
        found = Counter(row["cluster"] for row in csv.DictReader(stream))
    print("readings by cluster:", dict(found.most_common()))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "readings.csv"))
