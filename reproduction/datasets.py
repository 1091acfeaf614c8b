"""The papers' data sets, read from a folder of `NAME.csv.gz` (or `NAME.csv`) files, and their
splits over clients.

A file has a header row, numeric feature columns, and a last column `label`. Any such file can be
used; for those of the FCAC paper the table `FCAC_DATASETS` has the number of clients and the
columns that are not features.

The FCAC paper's splits (section 5.3.2 and the authors' program) are those of its figures to the
row, so they use numpy's legacy generator, whose stream is frozen. A client's rows are in the order
of the classes, which is the order in which they are learnt.
"""

from __future__ import annotations

import csv
import gzip
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TextIO

import numpy as np

from shoal.errors import InvalidData, SettingsError
from shoal.kernels.arrays import Floats, Ints

Fill = Literal["refuse", "mean", "drop"]
SUFFIXES: Final = (".csv.gz", ".csv")
ABSENT: Final = frozenset({"", "?", "na", "nan", "null", "none"})
"""cells, in lower case, that stand for a missing value"""


@dataclass(frozen=True)
class FcacDataset:
    """What the FCAC paper's table 2 and its program state about a data set and its file does
    not."""

    clients: int
    aliases: tuple[str, ...] = ()
    not_features: tuple[str, ...] = ()
    fill: Fill = "refuse"
    pixels: bool = False
    """grey values 0..255, scaled to -1..1 as the paper's program does"""


FCAC_DATASETS: Final[dict[str, FcacDataset]] = {
    "hill_valley": FcacDataset(5, ("hillvalley",)),
    # The paper's copy has no gaps and does not say how they were filled, so its figures are not met
    # exactly.
    "ozone": FcacDataset(5, ("ozone_8hr", "ozone_level_8hr"), ("date",), fill="mean"),
    "bioresponse": FcacDataset(10),
    "phoneme": FcacDataset(10),
    "optdigits": FcacDataset(50),
    "pendigits": FcacDataset(50),
    "mozilla4": FcacDataset(10),
    # The published file is sorted by class and numbers its rows: its ID gives the class away, and
    # the paper's figures are those without it, although table 2 counts it among the features.
    "magic_telescope": FcacDataset(50, ("magic", "magictelescope"), ("ID",)),
    "fashion_mnist": FcacDataset(100, ("fmnist", "fashionmnist"), pixels=True),
    "skin": FcacDataset(100, ("skin_segmentation", "skinsegmentation")),
}


@dataclass(frozen=True)
class Dataset:
    """rows (n, d) float64; labels (n,) int64 from 0 in the sorted order of `classes`; `notes` for
    people."""

    name: str
    rows: Floats
    labels: Ints
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


class _TextColumn(Exception):
    def __init__(self, column: int) -> None:
        self.column = column


def fcac_name(name: str) -> str | None:
    """The key in `FCAC_DATASETS` of a data set by any of its names, or None."""
    plain = _plain(name)
    return next(
        (key for key, known in FCAC_DATASETS.items() if plain in (key, *known.aliases)), None
    )


def find(folder: Path, name: str) -> Path:
    """The file of a data set, by that name or another name of the same data set. Raises
    `SettingsError`."""
    files = _files(folder)
    found = _find(files, name)
    if found is None:
        raise SettingsError(
            f"{folder}: no {name}.csv.gz in it; it holds "
            f"{', '.join(sorted(files)) or 'no CSV files'}"
        )
    return found


def find_any(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of those data sets that the folder holds, in the order of the names. Raises
    `SettingsError` if none."""
    files = _files(folder)
    found = [path for name in names if (path := _find(files, name)) is not None]
    if not found:
        raise SettingsError(
            f"{folder}: none of {', '.join(names)} (.csv.gz) is in it; name a data set with "
            "--dataset"
        )
    return found


def _find(files: Mapping[str, Path], name: str) -> Path | None:
    key = fcac_name(name)
    candidates = (_plain(name), *((key, *FCAC_DATASETS[key].aliases) if key else ()))
    return next((files[candidate] for candidate in candidates if candidate in files), None)


def _files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        raise SettingsError(
            f"{folder}: no such folder; it must hold files such as optdigits.csv.gz"
        )
    # Where both NAME.csv and NAME.csv.gz are there, the compressed one is taken, because it is
    # listed last.
    return {
        _plain(stem(path)): path
        for end in reversed(SUFFIXES)
        for path in sorted(folder.glob("*" + end))
    }


def stem(path: Path) -> str:
    """`folder/pendigits.csv.gz` -> `pendigits`."""
    return next(
        (path.name.removesuffix(end) for end in SUFFIXES if path.name.endswith(end)), path.stem
    )


def read(path: Path, fill: Fill = "refuse") -> Dataset:
    """Read one file. Columns of text, and those that the FCAC paper does not use, are left out with
    a note.

    `fill` decides about missing cells: `refuse` raises, `mean` takes the mean of the column, `drop`
    leaves the row out. Raises `InvalidData` (no label column, no rows, no numeric column, infinite
    or missing values) and `SettingsError` (unreadable).
    """
    known = FCAC_DATASETS.get(fcac_name(stem(path)) or "", FcacDataset(0))
    notes: list[str] = []
    try:
        names, dropped, cells, label_texts = _parse(path, known)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as unreadable:
        raise SettingsError(f"{path}: cannot be read: {unreadable}") from None
    kept = [name for place, name in enumerate(names) if place not in dropped]
    if dropped:
        columns = ", ".join(names[place] for place in sorted(dropped))
        notes.append(f"{stem(path)}: columns left out, as they are not features: {columns}")
    if not kept or not label_texts:
        raise InvalidData(
            f"{path}: {len(label_texts)} rows of {len(kept)} numeric columns; at least one of "
            "each is needed"
        )
    rows = np.frombuffer(cells, dtype=np.float64).reshape(len(label_texts), len(kept)).copy()
    if np.isinf(rows).any():
        raise InvalidData(f"{path}: {int(np.isinf(rows).sum())} infinite cells; correct the file")
    labels, classes = encode_labels(label_texts, str(path))
    if np.isnan(rows).any():
        # A fill that was chosen goes before the one that the table declares.
        rows, labels, note = _filled(rows, labels, known.fill if fill == "refuse" else fill, path)
        notes.append(note)
    if known.pixels and rows.max() > 1.0:
        rows = rows / 127.5 - 1.0
        notes.append(f"{stem(path)}: grey values scaled to -1..1")
    return Dataset(stem(path), rows, labels, classes, tuple(notes))


def encode_labels(label_texts: list[str], source: str) -> tuple[Ints, tuple[str, ...]]:
    """Labels as text -> numbers (n,) from 0 in sorted order (by value if all are numbers), and the
    classes."""
    if any(label.strip().lower() in ABSENT for label in label_texts):
        count = sum(label.strip().lower() in ABSENT for label in label_texts)
        raise InvalidData(f"{source}: {count} rows without a label; leave those rows out")
    try:
        numbers = {label: float(label) for label in set(label_texts)}
    except ValueError:
        classes: list[str] = sorted(set(label_texts))
        place = {label: number for number, label in enumerate(classes)}
    else:
        values = sorted(set(numbers.values()))
        classes = [f"{value:g}" for value in values]
        place = {label: values.index(value) for label, value in numbers.items()}
    return np.array([place[label] for label in label_texts], dtype=np.int64), tuple(classes)


def _parse(path: Path, known: FcacDataset) -> tuple[list[str], set[int], array[float], list[str]]:
    with _opened(path) as file:
        header = next(csv.reader(file), [])
    if len(header) < 2 or header[-1].strip().lower() != "label":
        raise InvalidData(
            f"{path}: the last column must be `label`, with at least one feature before it"
        )
    names = [name.strip() for name in header[:-1]]
    dropped = {place for place, name in enumerate(names) if name in known.not_features}
    while True:
        try:
            cells, label_texts = _cells(path, len(header), dropped)
        except _TextColumn as text:
            # That a column is text is found out while reading: leave it out and start again.
            dropped.add(text.column)
        else:
            return names, dropped, cells, label_texts


def _cells(path: Path, width: int, dropped: set[int]) -> tuple[array[float], list[str]]:
    kept = [place for place in range(width - 1) if place not in dropped]
    everything = len(kept) == width - 1
    cells = array("d")
    label_texts = []
    with _opened(path) as file:
        lines = csv.reader(file)
        next(lines)
        for line in lines:
            if not line:
                continue
            if len(line) != width:
                raise InvalidData(
                    f"{path}: line {lines.line_num} has {len(line)} cells, the header has {width}"
                )
            chosen = line[:-1] if everything else [line[place] for place in kept]
            try:
                numbers = [float(cell) for cell in chosen]
            except ValueError:
                numbers = [_number(cell, place) for cell, place in zip(chosen, kept, strict=True)]
            cells.extend(numbers)
            label_texts.append(line[-1])
    return cells, label_texts


def _number(cell: str, column: int) -> float:
    try:
        return float(cell)
    except ValueError:
        if cell.strip().lower() in ABSENT:
            return float("nan")
        raise _TextColumn(column) from None


def _filled(rows: Floats, labels: Ints, fill: Fill, path: Path) -> tuple[Floats, Ints, str]:
    missing = np.isnan(rows)
    gaps = (
        f"{stem(path)}: {int(missing.sum())} missing cells in {int(missing.any(axis=1).sum())} rows"
    )
    if fill == "refuse":
        raise InvalidData(f"{gaps}; choose --fill mean or --fill drop, or correct {path}")
    if fill == "drop":
        complete = ~missing.any(axis=1)
        if not complete.any():
            raise InvalidData(f"{gaps}: no row is complete; choose --fill mean")
        left, numbers = np.unique(labels[complete], return_inverse=True)
        return (
            rows[complete],
            numbers.astype(np.int64),
            f"{gaps}, left out ({len(left)} classes remain)",
        )
    if missing.all(axis=0).any():
        raise InvalidData(f"{gaps}, and a column without any value; correct {path}")
    return (
        np.where(missing, np.nanmean(rows, axis=0), rows),
        labels,
        f"{gaps}, filled with the mean of their column",
    )


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    with (
        gzip.open(path, "rt", encoding="utf-8", newline="")
        if path.name.endswith(".gz")
        else path.open(encoding="utf-8", newline="")
    ) as file:
        yield file


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


Split = Literal["iid", "niid", "kp", "label", "sector"]
"""equal shares of each class; Dirichlet shares of each class; few classes on each client (k-FED);
rows in the order of their classes, in equal parts; rows in the order of their direction from the
middle, in equal parts"""

FCAC_SPLITS: Final[tuple[Split, ...]] = ("iid", "niid")
ALPHA: Final = 0.5
"""parameter of the Dirichlet distribution: small values give clients few classes"""
CLIENT_ROWS_MIN: Final = 40
"""fewest rows of a client in the non-IID split: a draw that leaves one fewer is repeated"""
DRAWS_MAX: Final = 1000
"""the hardest of the paper's splits (Magic, 50 clients) takes 106 draws"""
ROWS_PER_CLIENT: Final = 400
CLIENTS_MAX: Final = 50


def default_clients(rows: int) -> int:
    """Number of clients for a data set that the FCAC paper does not have: one per 400 rows, from 2
    to 50."""
    return min(CLIENTS_MAX, max(2, rows // ROWS_PER_CLIENT))


def feasible_clients(labels: Ints, clients: int) -> int:
    """`clients`, halved until the non-IID split gives each one its 40 rows. Raises `InvalidData`
    below 40 rows.

    The sizes of the shares do not depend on the trial, so one answer holds for all trials.
    """
    while True:
        try:
            deal_dirichlet(labels, clients)
        except InvalidData:
            if clients == 1:
                raise
            clients = max(1, clients // 2)
        else:
            return clients


def deal(labels: Ints, clients: int, split: Split, trial: int) -> list[Ints]:
    """labels (n,) -> for each client the indices of its rows, in the order in which it learns them.

    The trial's number is the seed of the permutation before the split. Raises `InvalidData`,
    `SettingsError`.
    """
    if clients < 1:
        raise SettingsError(f"{clients} clients; at least 1 is needed")
    if split == "kp":
        return deal_few_classes(labels, clients, trial)
    if split == "label":
        return deal_by_class(labels, clients, trial)
    if split == "sector":
        raise SettingsError(
            "the split into sectors depends on the rows and not on their classes alone"
        )
    order = np.random.RandomState(trial).permutation(len(labels))
    deal_permuted = deal_evenly if split == "iid" else deal_dirichlet
    return [order[places] for places in deal_permuted(labels[order], clients)]


def deal_evenly(labels: Ints, clients: int) -> list[Ints]:
    """IID: of each class, equal consecutive blocks to the clients and the remainder to the last
    one."""
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        block = len(places) // clients
        for client, part in enumerate(parts):
            part.append(
                places[client * block : (client + 1) * block if client < clients - 1 else None]
            )
    return [_joined(part) for part in parts]


def deal_dirichlet(labels: Ints, clients: int) -> list[Ints]:
    """Non-IID: of each class, shares drawn from Dirichlet(0.5); none to clients that have n/clients
    rows already.

    The generator starts at 0 in every trial. Raises `InvalidData` when no draw of `DRAWS_MAX` gives
    every client 40 rows.
    """
    if len(labels) >= clients * CLIENT_ROWS_MIN:
        generator = np.random.RandomState(0)
        for _ in range(DRAWS_MAX):
            parts = _dirichlet_draw(labels, clients, generator)
            if min(map(len, parts)) >= CLIENT_ROWS_MIN:
                return parts
    raise InvalidData(
        f"{len(labels)} rows cannot be dealt to {clients} clients with at least {CLIENT_ROWS_MIN} "
        "each; ask for fewer with --clients, or leave this data set out of the non-IID split"
    )


def deal_few_classes(labels: Ints, clients: int, trial: int) -> list[Ints]:
    """k-FED's split: each client holds rows of floor(sqrt(K)) + 1 of the K classes, each class in
    equal shares."""
    generator = np.random.default_rng(trial)
    classes = np.unique(labels)
    classes_each = min(len(classes), int(np.sqrt(len(classes))) + 1)
    # Places are filled from shuffled lists of all classes, so every class has a client if there are
    # places for all.
    places = np.concatenate(
        [generator.permutation(classes) for _ in range(clients * classes_each // len(classes) + 1)]
    )
    held = [
        np.unique(places[client * classes_each : (client + 1) * classes_each])
        for client in range(clients)
    ]
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    for label in classes:
        rows = generator.permutation(np.flatnonzero(labels == label))
        holders = [client for client, own in enumerate(held) if label in own] or [
            int(label) % clients
        ]
        for client, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
            parts[client].append(share)
    return [_joined(part) for part in parts]


def deal_by_class(labels: Ints, clients: int, trial: int) -> list[Ints]:
    """Rows in the order of their classes, at random within each, in equal consecutive parts."""
    order = np.random.default_rng(trial).permutation(len(labels))
    # Stable, so that the rows of a class stay in the order that was drawn, on which published
    # figures depend.
    return np.array_split(order[np.argsort(labels[order], kind="stable")], clients)


def deal_sectors(rows: Floats, clients: int) -> list[Ints]:
    """rows (n, d), d >= 2, in the order of the angle of their first two features around the mean,
    in equal parts.

    Raises `InvalidData` for rows of one feature.
    """
    if rows.shape[1] < 2:
        raise InvalidData("rows of one feature have no directions; choose another split")
    away = rows - rows.mean(axis=0)
    # Stable, so that equal rows are dealt alike on every machine.
    return np.array_split(np.argsort(np.arctan2(away[:, 1], away[:, 0]), kind="stable"), clients)


def _dirichlet_draw(labels: Ints, clients: int, generator: np.random.RandomState) -> list[Ints]:
    parts: list[list[Ints]] = [[] for _ in range(clients)]
    held = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        generator.shuffle(places)
        shares = generator.dirichlet(np.repeat(ALPHA, clients)) * (held < len(labels) / clients)
        shares = shares / shares.sum()
        cuts = (np.cumsum(shares) * len(places)).astype(np.int64)[:-1]
        for client, block in enumerate(np.split(places, cuts)):
            parts[client].append(block)
            held[client] += len(block)
    return [_joined(part) for part in parts]


def _joined(blocks: list[Ints]) -> Ints:
    return np.concatenate(blocks) if blocks else np.empty(0, dtype=np.int64)
