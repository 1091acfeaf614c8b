"""The engine `spark`: Spark reads the files, brings the readings of each client together and sorts
them.

Needs the extra `spark`, and Java 17 or later.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from shoal.errors import InvalidData, MissingExtra, SettingsError, ShoalError
from shoal.onebox.replay.parquet import (
    CLIENT,
    ROWS_PER_FILE,
    SEQUENCE,
    TIME,
    Columns,
    ReadingsFile,
    normalise,
)
from shoal.onebox.replay.plan import ReplayPlan
from shoal.onebox.replay.results import PartSummary, learn_part, learnt

try:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as sql
except ImportError:
    raise MissingExtra("--engine spark", "spark") from None

J = TypeVar("J")
R = TypeVar("R")
PART: Final = "part"
DRIVER_MEMORY: Final = "1g"
LOOK_EVERY_S: Final = 0.5
"""seconds between two looks for finished parts while Spark runs"""
OUTCOME: Final = "part long, error string"


class SparkEngine:
    """A Spark session: `repartition(n, part).sortWithinPartitions(client, t,
    sequence).mapInArrow(...)`."""

    def __init__(self, workers: int, address: str | None = None) -> None:
        """`address` is the master of a running cluster; None: Spark runs in this process, for
        loopback alone."""
        if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
            raise SettingsError(
                "--engine spark needs Java 17 or later; on Debian: apt install "
                "openjdk-17-jre-headless"
            )
        # Workers must have the packages of this environment; Spark would start the `python3` of the
        # path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("shoal replay").master(
            address or f"local[{workers}]"
        )
        if address is None:
            # Without these, Spark listens on the address of the host's name, which others reach.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            builder = builder.config("spark.driver.host", "127.0.0.1").config(
                "spark.driver.bindAddress", "127.0.0.1"
            )
        settings = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": DRIVER_MEMORY,
            # Times without a zone would be read in that of the machine, and the results depend on
            # it.
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(workers),
        }
        for name, value in settings.items():
            builder = builder.config(name, value)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self._session = builder.getOrCreate()

    def spread(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterable[R]:
        """See `Engine.spread`; the results come together."""
        if not jobs:
            return []
        results: list[R] = (
            self._session.sparkContext.parallelize(list(jobs), len(jobs)).map(work).collect()
        )
        return results

    def learn(self, plan: ReplayPlan, parts: Sequence[int]) -> Iterator[PartSummary]:
        """See `Engine.learn`. The parts are one job of Spark; they are yielded as their results
        appear."""
        with warnings.catch_warnings():
            # Spark warns of pandas 3, which is not used here.
            warnings.simplefilter("ignore", FutureWarning)
            learning = self._readings(plan, parts).mapInArrow(partial(_learn, plan), OUTCOME)
        outcomes: list[Any] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                outcomes.extend(learning.collect())
            except BaseException as failure:
                failures.append(failure)
                raise

        job = threading.Thread(target=run, name="shoal-replay-spark", daemon=True)
        job.start()
        left = set(parts)
        while left and job.is_alive():
            job.join(LOOK_EVERY_S)
            found = learnt(plan, sorted(left))
            left -= {summary.part for summary in found}
            yield from found
        job.join()
        if failures:
            raise failures[0]
        if errors := [outcome.error for outcome in outcomes if outcome.error is not None]:
            # The same one in every run, whichever worker was first.
            raise InvalidData(min(errors))
        found = learnt(plan, sorted(left))
        yield from found
        # Spark has seen no reading of a part that has no client.
        for part in sorted(left - {summary.part for summary in found}):
            yield learn_part(plan, part, [])

    def close(self) -> None:
        """See `Engine.close`."""
        self._session.stop()

    def _readings(self, plan: ReplayPlan, parts: Sequence[int]) -> DataFrame:
        """The readings of these parts, those of a client together and in the canonical order."""
        frames = (self._read(number, file, plan.columns) for number, file in enumerate(plan.files))
        part = sql.crc32(sql.col(CLIENT).cast("binary")) % plan.parts
        readings = reduce(DataFrame.unionAll, frames).withColumn(PART, part)
        if len(parts) < plan.parts:
            readings = readings.where(sql.col(PART).isin(list(parts)))
        return readings.repartition(len(parts), PART).sortWithinPartitions(
            PART, CLIENT, TIME, SEQUENCE
        )

    def _read(self, number: int, file: ReadingsFile, columns: Columns) -> DataFrame:
        """One file, with its columns under the names of a replay."""
        frame = self._session.read.parquet(file.path.as_uri())
        in_file = sql.lit(number * ROWS_PER_FILE) + sql.col("_metadata.row_index")
        return frame.select(
            _column(columns.client).cast("string").alias(CLIENT),
            _column(columns.time).alias(TIME),
            (in_file if columns.sequence is None else _column(columns.sequence)).alias(SEQUENCE),
            *(_column(name).alias(f"x{place}") for place, name in enumerate(columns.features)),
        )


def _column(name: str) -> Any:
    """A column by its whole name, dots included."""
    return sql.col("`" + name.replace("`", "``") + "`")


def _learn(plan: ReplayPlan, readings: Iterable[Any]) -> Iterator[Any]:
    """Learn the parts of one partition; runs in Spark's workers. Yields a row for each part."""
    names = Columns(
        tuple(f"x{place}" for place in range(plan.contract.width)), CLIENT, TIME, SEQUENCE
    )
    for part, batches in groupby(_by_part(readings), key=itemgetter(0)):
        error = None
        try:
            learn_part(
                plan,
                part,
                (normalise(batch, names, batch.column(SEQUENCE)) for _, batch in batches),
            )
        except ShoalError as failed:
            # As a text: an exception in a worker comes back as one of Spark's, with a traceback of
            # Java.
            error = str(failed)
        yield pa.record_batch(
            {PART: pa.array([part], pa.int64()), "error": pa.array([error], pa.string())}
        )


def _by_part(readings: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Each part with its batch, from batches in which several parts follow one another."""
    for batch in readings:
        runs = pc.run_end_encode(batch.column(PART))
        start = 0
        for part, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield part, batch.slice(start, end - start)
            start = end
