"""InfluxDB line protocol: its lines, files of it, and a write endpoint that stores each point
once."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.config.settings import Config, load_config
from shoal.errors import SettingsError
from shoal.producers.federation_file import federation_file
from shoal.producers.file_plan import plan_of
from shoal.producers.files.line_protocol import Point, point_of
from shoal.producers.files.source import FILES, PLAIN_REPLAY, with_settings
from shoal.producers.influx.ingest import InfluxIngest, open_influx_ingest
from shoal.producers.influx.settings import InfluxSettings
from shoal.producers.kafka.ingest import KafkaCounts
from shoal.producers.source_type import ProducerTask
from tests.federation_text import federation_text
from tests.field.planted import OPTIONS, planted
from tests.producers.running_producer import stored_in

LINES: dict[str, Point | None] = {
    "m f=1": Point("m", {}, {"f": 1.0}, None),
    "m,a=b,c=d f=-1.5e3,g=2i,h=3u 17": Point(
        "m", {"a": "b", "c": "d"}, {"f": -1500.0, "g": 2, "h": 3}, 17
    ),
    r"my\ m\,x,tag\ a=b\=c,d=e\ f f\ g=.5 -1": Point(
        "my m,x", {"tag a": "b=c", "d": "e f"}, {"f g": 0.5}, -1
    ),
    r'm s="a, \"b\" = c\\",t=T,f=false 5': Point(
        "m", {}, {"s": 'a, "b" = c\\', "t": True, "f": False}, 5
    ),
    r"m,path=C:\temp f=1 5": Point("m", {"path": r"C:\temp"}, {"f": 1.0}, 5),
    "m,a=ü f=1 1700000000000000000\r": Point("m", {"a": "ü"}, {"f": 1.0}, 1700000000000000000),
    "m": None,
    "m,a f=1": None,
    "m f=": None,
    "m f=1,": None,
    "m f=x": None,
    "m f=1 2 3": None,
    'm f="open 3': None,
    "m f=0x1A": None,
    "m f=nan": None,
    '{"f": 1}': None,
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_a_point_or_none(line: str) -> None:
    assert point_of(line) == LINES[line]


def test_a_file_of_line_protocol_is_read_as_any_other(tmp_path: Path) -> None:
    rows = list(zip(*planted(300).values(), strict=True))
    lines = ["# written by a collector"]
    for row, (temp, hum) in enumerate(rows):
        end = f"{1_700_000_000 + 60 * (row // 2)}000000000"
        host = f"host=hall-{row % 2}"
        # Two measurements of one host and one time are one reading.
        lines += [f"air,{host} temp={temp},status=192i {end}", f"damp,{host} hum={hum} {end}"]
    file = tmp_path / "a.lp.gz"
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    plan = plan_of([file], OPTIONS)
    assert plan.understood.clients == ("hall-0", "hall-1")
    assert plan.understood.interval_s == 60
    names = ["air.temp", "damp.hum"]
    assert [column.name for column in plan.understood.of("feature")] == names
    out = tmp_path / "a.toml"
    out.write_text(federation_file(plan), encoding="utf-8")
    config = load_config(out)
    readings = FILES.open(
        config.contract, with_settings({**PLAIN_REPLAY, "files": (file,)}, config)
    ).read(301)
    assert [list(reading.values) for reading in readings] == [[float(t), float(h)] for t, h in rows]


def test_a_file_with_a_field_a_line_is_refused_with_what_mends_it(tmp_path: Path) -> None:
    times = [1_700_000_000 + row for row in range(200)]
    cells = planted(200)
    lines = []
    for name, column in cells.items():
        lines += [f"m {name}={cell} {time}" for cell, time in zip(column, times, strict=True)]
    file = tmp_path / "a.lp"
    file.write_text("\n".join(lines))
    with pytest.raises(SettingsError, match="sort -s -k3,3 -k1,1"):
        plan_of([file], OPTIONS)
    file.write_text("\n".join(sorted(lines, key=lambda line: line.split()[::-2])))
    assert [column.name for column in plan_of([file], OPTIONS).understood.of("feature")] == [
        "temp",
        "hum",
    ]


NOW = 1_700_001_000.0
FEDERATION = federation_text(
    "t",
    features=[{"name": name, "low": -40, "high": 1e9} for name in ("warm", "damp")],
    privacy={"mode": "off", "missing": "learn"},
    models=[{"name": "m", "algorithm": "cluster_tree"}],
    client={"folder": "clients"},
    influx={},
)


class Site:
    """A site with a write endpoint, whose process steps as often as a test says."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder = folder / "clients"
        file = folder / "federation.toml"
        file.write_text(FEDERATION + f'listen = "127.0.0.1:0"\n{settings}')
        self.config: Config = load_config(file)
        self.counts = KafkaCounts()

    @contextmanager
    def running(self, name: str | None = None) -> Iterator[InfluxIngest]:
        task = ProducerTask(self.config, self.folder, {"name": name}, as_json=True)
        with open_influx_ingest(task, self.counts, clock=lambda: NOW) as ingest:
            yield ingest

    def values(self) -> dict[str, list[list[float]]]:
        stored = {}
        for client, readings in stored_in(self.folder).items():
            stored[client] = [list(reading.values) for reading in readings]
        return stored


@pytest.fixture
def sender() -> Iterator[Callable[..., Future[tuple[int, str]]]]:
    """Writes from a thread of its own: `sender(port, body, path, headers)`."""

    def send(
        port: int, body: bytes, path: str = "/api/v2/write", headers: Any = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    with ThreadPoolExecutor(4) as pool:
        yield lambda *args, **kwargs: pool.submit(send, *args, **kwargs)


@pytest.mark.parametrize("bookmark", ["kept", "damaged", "absent"])
def test_a_write_is_answered_when_it_is_stored_and_a_repeated_one_is_not_stored_again(
    tmp_path: Path, sender: Callable[..., Future[tuple[int, str]]], bookmark: str
) -> None:
    site = Site(tmp_path, 'client = "host"\n[influx.fields]\nwarm = "air.warm"\n')
    body = (
        b"air,host=a warm=1.5,fan=3i 1700000000\nother,host=a warm=99,damp=7 1700000000\n"
        b"air,host=B\\ 2 warm=unavailable 1700000000\nair,host=B\\ 2 damp=8 1700000001\n"
        b"air warm=3 1700000002\n"
    )
    with site.running() as ingest:
        write = sender(ingest.endpoint.port, body, "/write?db=x&precision=s")
        while not ingest.step(timeout_s=1):
            pass
        status, answer = write.result()
        assert status == 400
        assert json.loads(answer)["error"].startswith("partial write: 1 lines")
    stored = site.values()
    assert stored["a"] == [[1.5, 7.0]]
    (of_b,) = [values for client, values in stored.items() if client != "a"]
    assert np.isnan(of_b[0][0])
    assert of_b[0][1] == 8.0
    assert site.counts.faults["nameless"] == 1
    [file] = site.folder.glob("producer.*.db")
    if bookmark == "absent":
        file.unlink()
    if bookmark == "damaged":
        content = file.read_bytes()
        file.write_bytes(content[:100] + bytes(len(content) - 100))
    # The answer was lost, or the process was killed before it: the sender writes once more.
    later = body.replace(b"17000000", b"17000001") + body
    with site.running() as ingest:
        write = sender(
            ingest.endpoint.port,
            gzip.compress(later),
            "/api/v2/write?precision=s",
            {"Content-Encoding": "gzip"},
        )
        while not ingest.step(timeout_s=1):
            pass
        assert write.result()[0] == 400
    assert site.values()["a"] == [[1.5, 7.0], [1.5, 7.0]]
    assert site.counts.faults["not_newer"] == 2


def test_a_write_without_a_time_has_that_of_arrival_and_chunks_are_read(
    tmp_path: Path, sender: Callable[..., Future[tuple[int, str]]]
) -> None:
    site = Site(tmp_path, "")
    with site.running("hall") as ingest:
        # http.client sends an iterable in chunks.
        write = sender(ingest.endpoint.port, iter([b"m warm=1,", b"damp=2\n"]))
        while not ingest.step(timeout_s=1):
            pass
        assert write.result() == (204, "")
    assert site.values() == {"hall": [[1.0, 2.0]]}


REFUSED: dict[str, tuple[str, dict[str, str], bytes, int]] = {
    "a wrong token": ("/write", {"Authorization": "Token no"}, b"m warm=1", 401),
    "a page": (
        "/write",
        {"Authorization": "Token yes", "Origin": "http://example.org"},
        b"m warm=1",
        403,
    ),
    "a precision that is none": (
        "/write?precision=day",
        {"Authorization": "Token yes"},
        b"m warm=1",
        400,
    ),
    "too much": ("/write", {"Authorization": "Token yes"}, b"m warm=1\n" * 200, 413),
    "too much, compressed": (
        "/write",
        {"Authorization": "Token yes", "Content-Encoding": "gzip"},
        gzip.compress(b"m warm=1\n" * 200),
        413,
    ),
    "another path": ("/api/v2/delete", {}, b"", 404),
    "no text": ("/write", {"Authorization": "Token yes"}, b"\xff\xfe", 400),
}


def test_what_is_refused_is_not_stored(
    tmp_path: Path, sender: Callable[..., Future[tuple[int, str]]]
) -> None:
    (tmp_path / "token").write_text("yes\n")
    site = Site(tmp_path, 'token_file = "token"\nbody_bytes_max = 1024\n')
    with site.running("hall") as ingest:
        for what, (path, headers, body, status) in REFUSED.items():
            assert sender(ingest.endpoint.port, body, path, headers).result()[0] == status, what
        assert not ingest.step()
        right = sender(ingest.endpoint.port, b"m warm=4", "/write", {"Authorization": "Token yes"})
        while not ingest.step(timeout_s=1):
            pass
        assert right.result()[0] == 204
    assert len(site.values()["hall"]) == 1


def test_an_endpoint_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    for listen in ("127.0.0.1:8086", "[::1]:8086", "localhost:8086"):
        assert InfluxSettings(listen=listen).listen == listen
    for listen in ("0.0.0.0:8086", "[::]:8086", "collector:8086"):
        with pytest.raises(ValueError, match="token_file"):
            InfluxSettings(listen=listen)
        assert InfluxSettings(listen=listen, token_file=tmp_path / "token").listen == listen
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:8086"):
        InfluxSettings(listen="8086")
