"""One peer of `States` in a process of its own: `python -m benchmarks.states_peer_process`.

Peers need older versions of NumPy than shoal is measured with, so they come from a folder of their
own, which the caller puts on the path of Python (`benchmarks.states_peers`). Nothing of shoal is
imported here.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

WARM_READINGS: Final = 1_000
"""readings of the stream on which a peer compiles what it needs, before any series counts"""
STATES_MAX: Final = 6
BLOCK: Final = 8
SLIDING: Final = 10_000
"""readings of the window of ClaSS, its default; for a shorter series its length, as in its tests"""

# Arrays of NumPy's have no types here: this module is run with the peers' version of it.
Labels = Any
Peer = Callable[[Any], Labels]


def segments(changes: Any, n: int) -> Labels:
    """(n,) the number of the segment of each reading, by the positions of changes."""
    return np.searchsorted(np.sort(np.asarray(changes)), np.arange(n), side="right")


def clap(rows: Any) -> Labels:
    """CLaP with its defaults: states of the segments that ClaSP finds."""
    learner = import_module("claspy.state_detection").AgglomerativeCLaPDetection(n_jobs=1)
    try:
        return np.asarray(learner.fit_predict(_columns(rows)))
    except ValueError as error:
        # It learns to tell segments apart, and cannot where ClaSP finds but one.
        if "2 unique labels" not in str(error):
            raise
        return np.zeros(len(rows), dtype=np.int64)


def clasp(rows: Any) -> Labels:
    """ClaSP with its defaults."""
    learner = import_module("claspy.segmentation").BinaryClaSPSegmentation(n_jobs=1)
    return segments(learner.fit_predict(_columns(rows)), len(rows))


def class_(rows: Any) -> Labels:
    """ClaSS with its defaults, reading by reading; of one column only."""
    learner = import_module("claspy.streaming.segmentation").StreamingClaSPSegmentation(
        n_timepoints=min(SLIDING, len(rows)), log_cps=True
    )
    for reading in rows[:, 0]:
        learner.update(reading)
    return segments(learner.change_points, len(rows))


def hidden_markov(rows: Any) -> Labels:
    """A Gaussian hidden Markov model with the number of states, up to 6, of the least BIC."""
    hmm = import_module("hmmlearn.hmm")
    standard = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-9)
    labels = np.zeros(len(rows), dtype=np.int64)
    least = np.inf
    for states in range(1, STATES_MAX + 1):
        model = hmm.GaussianHMM(states, "diag", n_iter=20, random_state=0, min_covar=1e-2)
        bic = model.fit(standard).bic(standard)
        if bic < least:
            least = bic
            labels = model.predict(standard)
    return labels


def change_points(rows: Any) -> Labels:
    """PELT for changes of the mean of blocks of 8 readings, in units of their noise."""
    blocks = rows[: len(rows) // BLOCK * BLOCK].reshape(-1, BLOCK, rows.shape[1]).mean(axis=1)
    # The median of a Gaussian's absolute difference of two is .95 of its deviation.
    noise = np.median(np.abs(np.diff(blocks, axis=0)), axis=0) / 0.95
    blocks = blocks / np.maximum(noise, 1e-9)
    penalty = 2 * rows.shape[1] * np.log(len(blocks))
    # Compiled, with the same cost as `Pelt(model="l2", jump=1)`.
    learner = import_module("ruptures").KernelCPD(kernel="linear", min_size=2)
    ends = learner.fit(blocks).predict(pen=penalty)
    return segments(BLOCK * np.array(ends[:-1]), len(rows))


def _columns(rows: Any) -> Any:
    return rows if rows.shape[1] > 1 else rows[:, 0]


PEERS: Final[dict[str, Peer]] = {
    "clap": clap,
    "clasp": clasp,
    "class": class_,
    "hmm": hidden_markov,
    "pelt": change_points,
}


def labelled(peer: Peer, rows: Any, seconds: float, target: Path) -> float:
    """Processor seconds that `peer` took for the labels of `rows`, which are stored at `target`;
    they are not there where it took more than `seconds`."""
    # A process each: compiled code that runs for long is ended by nothing else.
    child = os.fork()
    if not child:
        # Its signal ends the process, whatever it computes.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        status = 1
        try:
            np.save(target, np.asarray(peer(rows), dtype=np.int64))
            status = 0
        finally:
            os._exit(status)
    _, status, usage = os.wait4(child, 0)
    is_late = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
    if status and not is_late:
        sys.exit(f"a peer failed on a series of {len(rows)} rows")
    return usage.ru_utime + usage.ru_stime


def _two_rhythms(columns: int) -> Any:
    """(n, columns) with one change, so that all that a peer does is compiled."""
    time = np.arange(WARM_READINGS)
    waves = np.sin(2 * np.pi * time / np.where(2 * time < WARM_READINGS, 13, 31))
    return waves[:, None] + 0.1 * np.random.default_rng(0).normal(size=(WARM_READINGS, columns))


def main() -> None:
    """NAME SECONDS SERIES FOLDER: label each array of SERIES (.npz), into FOLDER/PLACE.npy, and
    print the processor seconds of each."""
    name, seconds, series, folder = sys.argv[1:]
    warnings.simplefilter("ignore")
    peer = PEERS[name]
    file = np.load(series)
    first = file[file.files[0]]
    peer(_two_rhythms(first.shape[1]))
    for place, key in enumerate(file.files):
        took = labelled(peer, file[key], float(seconds), Path(folder, f"{place}.npy"))
        print(f"seconds {took:.3f}", flush=True)


if __name__ == "__main__":
    main()
