"""What is lacking here, a library, a right, a certificate or the schema of messages, is told apart
from damaged data at every reader. Codecs have tests of their own (`test_codecs`)."""

from __future__ import annotations

import gzip
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from shoal.errors import InvalidData, MissingExtra, SettingsError, ShoalError
from shoal.producers.files import parquet, text_lines
from shoal.producers.files.parquet import ParquetTable, parquet_errors
from shoal.producers.files.tables import open_table
from shoal.producers.mqtt.connection import _tls
from shoal.producers.mqtt.settings import MqttSettings
from shoal.producers.sampled_messages import OF_A_SCHEMA, _refuse_unread
from shoal.transports.kafka import KAFKA
from shoal.transports.kafka.settings import KafkaSettings

Patch = pytest.MonkeyPatch


def refused(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


def not_built(*_: object, **__: object) -> None:
    raise pa.ArrowNotImplementedError("Support for codec 'lzo' not built")


def right_to_a_text(folder: Path, patch: Patch) -> None:
    file = folder / "a.csv"
    file.write_text("a,b\n1,2\n")
    patch.setattr(text_lines, "_opened", refused)
    open_table(file, Counter())


def right_to_json(folder: Path, patch: Patch) -> None:
    file = folder / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"a": 1}\n'))
    patch.setattr(text_lines, "_opened", refused)
    open_table(file, Counter())


def right_to_parquet(folder: Path, patch: Patch) -> None:
    patch.setattr(parquet.parquet, "ParquetFile", refused)
    ParquetTable(folder / "a.parquet")


def codec_of_parquet(folder: Path, patch: Patch) -> None:
    patch.setattr(parquet.parquet, "ParquetFile", not_built)
    ParquetTable(folder / "a.parquet")


def library_of_parquet(folder: Path, patch: Patch) -> None:
    (folder / "a.parquet").write_bytes(b"PAR1")
    patch.delitem(sys.modules, "shoal.producers.files.parquet", raising=False)
    patch.setitem(sys.modules, "pyarrow", None)
    open_table(folder / "a.parquet", Counter())


def library_of_kafka(folder: Path, patch: Patch) -> None:
    for name in list(sys.modules):
        if name.startswith(("shoal.transports.kafka.", "kafka")):
            patch.delitem(sys.modules, name)
    patch.setitem(sys.modules, "kafka", None)
    KAFKA.open("//127.0.0.1:9", KafkaSettings())


def certificate(folder: Path, _: Patch) -> None:
    _tls(MqttSettings(tls=True, ca_file=folder / "none.pem"))


LACKS: dict[str, tuple[Callable[[Path, Patch], None], type[ShoalError], str]] = {
    "the right to read a text": (right_to_a_text, SettingsError, "may not read it"),
    "the right to read JSON lines": (right_to_json, SettingsError, "may not read it"),
    "the right to read Parquet": (right_to_parquet, SettingsError, "may not read it"),
    "a codec of Parquet": (codec_of_parquet, SettingsError, "lacks its codec"),
    "the library of Parquet": (library_of_parquet, MissingExtra, r"\[parquet\]"),
    "the library of Kafka": (library_of_kafka, MissingExtra, r"\[kafka\]"),
    "a certificate": (certificate, SettingsError, "ca_file"),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_is_lacking_here_is_no_damaged_data(
    lack: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    read, kind, remedy = LACKS[lack]
    with pytest.raises(kind, match=remedy) as told:
        read(tmp_path, monkeypatch)
    assert not isinstance(told.value, InvalidData)
    assert told.value.exit_code != InvalidData.exit_code


def test_damaged_data_stay_damaged_data(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(b"PAR1 and nothing")
    with pytest.raises(InvalidData, match="damaged"):
        open_table(file, Counter())
    with pytest.raises(InvalidData), parquet_errors(file):
        raise OSError("disk")
    with pytest.raises(InvalidData, match="schema registry"):
        _refuse_unread("plant", {"": OF_A_SCHEMA})
