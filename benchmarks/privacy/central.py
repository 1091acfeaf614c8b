"""diffprivlib's k-means for files of rows named on standard input, one by one.

Run by `benchmarks.privacy` with a Python that has diffprivlib; it imports nothing of this
repository.
"""

from __future__ import annotations

import sys
from pathlib import Path

import diffprivlib
import numpy as np
from diffprivlib.models import KMeans


def main() -> None:
    """Print the name of a file of labels for each line that names a file of rows."""
    print(diffprivlib.__version__, flush=True)
    for line in sys.stdin:
        asked = np.load(line.strip())
        rows = asked["rows"]
        d = asked["rows"].shape[1]
        model = KMeans(
            int(asked["k"]),
            epsilon=float(asked["epsilon"]),
            bounds=(np.zeros(d), np.ones(d)),
            random_state=int(asked["seed"]),
        ).fit(rows)
        found = Path(line.strip()).with_suffix(".npy")
        np.save(found, model.predict(rows))
        print(found, flush=True)


if __name__ == "__main__":
    main()
