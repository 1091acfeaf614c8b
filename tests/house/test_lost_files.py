"""What each file of a federation can be made from, and what it costs where it is damaged or absent.

The table in docs/reference/files.md is compared with `FILES`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from shoal.cli.formats import FORMATS
from shoal.client_nodes.bootstrap import open_client
from shoal.client_nodes.host import Host
from shoal.config.settings import Config, load_config
from shoal.config.upstream import load_upstream
from shoal.errors import LogUnavailable, ShoalError
from shoal.onebox.upkeep.backup import back_up
from shoal.onebox.upkeep.restore import restore
from shoal.producers.mqtt.client_stream import IngestCounts
from shoal.producers.mqtt.ingest import open_mqtt_ingest
from shoal.producers.mqtt.silence import SilenceMonitor
from shoal.producers.producer_command import producer
from shoal.protocol.codec import pack
from shoal.protocol.events import ClusterEventMessage
from shoal.protocol.topics import READINGS, ensure_topics
from shoal.runtime.checkpoint import Checkpoint
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.outputs.events_command import events as events_command
from shoal.server_node.regions.bridge import open_bridge
from shoal.transports import open_log
from tests.house.masked_federation import MaskedFederation
from tests.house.region_federations import REGIONS, WORLD, file_of, run_world, write_world
from tests.house.small_federation import (
    CLIENTS,
    all_records,
    clock,
    create_federation,
    model_bytes,
    run_to_end,
    write_federation,
)
from tests.house.test_site_log import keyed, use_site_log, write_site
from tests.producers.mqtt_ingest import IngestSite
from tests.server_node.test_forwarding import Receiver

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "files.md"
CLIENT = CLIENTS[0]
GOES_ON = ""
HEADER_BYTES = 100
"""of a database, which are left as they are: without them it is no database at all"""


class Outcome(NamedTuple):
    """What a damage, or an absence, does."""

    text: str
    """as it stands in docs"""
    client: str = GOES_ON
    """a part of the error that the client ends with"""
    server: str = GOES_ON
    """a part of the error that the server ends with"""


class File(NamedTuple):
    """One file."""

    path: str
    documented: str
    """its path in docs"""
    made_from: str
    damaged: Outcome
    absent: Outcome
    slow: str
    """what a disk does that is slow, or a process that holds the file"""


FILES = (
    File(
        "federation.db",
        "`[log] address`",
        "nothing; a row that has changed is found when it is read and left out (`log_row_damaged`)",
        Outcome("client and server refuse it", "damaged; move it away", "damaged; move it away"),
        Outcome(
            "clients go on in a new log, whose first updates hold all they have learnt; the server"
            " refuses it until it starts in a new folder",
            server="the log was made anew since the checkpoint was saved",
        ),
        "every process waits, and goes on",
    ),
    File(
        "federation.db-lease",
        "`[log] address` with `-lease`",
        "nothing is in it",
        Outcome("nothing"),
        Outcome("made again at the next renewal"),
        "nothing",
    ),
    File(
        f"clients/{CLIENT}/readings.db",
        "`[client] folder`/NAME/`readings.db`",
        "nothing, but by a producer whose source still has the readings",
        Outcome("the client refuses it; all else goes on", "damaged; move it away"),
        Outcome(
            "the client refuses a new one; all else goes on",
            "the readings log was created anew",
        ),
        "the client and its producer wait",
    ),
    File(
        f"clients/{CLIENT}/checkpoint.db",
        "`[client] folder`/NAME/`checkpoint.db`",
        "nothing; a client under a new name learns from the readings that are left",
        Outcome("the client refuses it; all else goes on", "damaged"),
        Outcome("the client does not start; all else goes on", "checkpoint.db is missing"),
        "the client waits",
    ),
    File(
        f"clients/{CLIENT}/ledger.db",
        "`[client] folder`/NAME/`ledger.db`",
        "nothing",
        Outcome("the client refuses it; all else goes on", "is no ledger that can be read"),
        Outcome("the client does not start; all else goes on", "the ledger is missing"),
        "the client waits, and publishes nothing that is not charged",
    ),
    File(
        f"clients/{CLIENT}/noise.key",
        "`[client] folder`/NAME/`noise.key`",
        "nothing",
        Outcome("the client refuses it; all else goes on", "under another noise key"),
        Outcome("the client does not start; all else goes on", "noise.key is missing"),
        "nothing: it is read at a start",
    ),
    File(
        "server/checkpoint.db",
        "`[server] folder`/`checkpoint.db`",
        "the log, as far as it reaches back: `shoal server --rebuild`, to the same model",
        Outcome("the server refuses it; clients go on", server="damaged"),
        Outcome("the server does not start without `--rebuild`; clients go on", server="--rebuild"),
        "the server waits; clients go on",
    ),
    File(
        "server/history.db",
        "`[server] folder`/`history.db`",
        "the topic `<federation>.history`",
        Outcome("set aside and made again (`history_set_aside`), while the server goes on"),
        Outcome("made again, while the server goes on"),
        "the server waits for a slow one; where another process holds it, the history is in memory"
        " (`history_in_memory`)",
    ),
)


class Part(NamedTuple):
    """A file that one command or process reads, and what that does without it."""

    made: str
    """the fixture folder that has it, a name of `MAKERS`"""
    path: str
    """a pattern of which the first match counts"""
    documented: str
    made_from: str
    damaged: Outcome
    absent: Outcome
    slow: str


PARTS = (
    Part(
        "host",
        "clients/checkpoints.db",
        "`[client] folder`/`checkpoints.db`",
        "nothing, as the checkpoints of clients",
        Outcome("the host refuses it", "damaged"),
        Outcome("the host leaves all its clients out", "is gone"),
        "the host waits",
    ),
    Part(
        "host",
        "clients/site.db",
        "`[client] folder`/`site.db`",
        "nothing: the site's log has the readings, and not what was released of them",
        Outcome("the host refuses it", "damaged"),
        Outcome("the host refuses a new one", "taken in by another file"),
        "the host waits",
    ),
    Part(
        "producer",
        "clients/producer.*.db",
        "`[client] folder`/`producer.SOURCE.db`",
        "the readings logs, in which the producer looks for its newest reading; `--again` ones are"
        " counted in it alone",
        Outcome("set aside and made again (`checkpoint_set_aside`)"),
        Outcome("made again"),
        "the producer waits",
    ),
    Part(
        "producer",
        "clients/*/fed.jsonl",
        "`[client] folder`/NAME/`fed.jsonl`",
        "the files, when they are fed",
        Outcome("files that were fed under another path are not recognised; nothing else"),
        Outcome("the same"),
        "the producer waits",
    ),
    Part(
        "producer",
        "clients/*/name.txt",
        "`[client] folder`/NAME/`name.txt`",
        "the data, when they are fed",
        Outcome("nothing"),
        Outcome("nothing"),
        "nothing: it is read at a start",
    ),
    Part(
        "mqtt",
        "clients/attic/mqtt.db",
        "`[client] folder`/NAME/`mqtt.db`",
        "the broker, as far as it keeps what was not acknowledged",
        Outcome("the producer refuses it; the client goes on", "damaged"),
        Outcome("made again; messages in it are lost"),
        "the producer waits, and acknowledges nothing that is not stored",
    ),
    Part(
        "helper",
        "h0/helper.db",
        "the helper's folder/`helper.db`",
        "nothing: it has what was unmasked",
        Outcome("the helper refuses it; its rounds wait", "damaged"),
        Outcome("the helper does not start; its rounds wait", "helper.db is missing"),
        "the helper waits, and its rounds",
    ),
    Part(
        "region",
        "*/server/upstream.db",
        "`[server] folder`/`upstream.db`",
        "the region's log: contributions are copied again, and dropped upstream as repeated",
        Outcome("set aside and made again (`checkpoint_set_aside`)"),
        Outcome("made again"),
        "contributions wait",
    ),
    Part(
        "events",
        "events/checkpoint.db",
        "`[events] folder`/`checkpoint.db`",
        "the log: all events that it still has are delivered again, with the same `id`",
        Outcome("set aside and made again (`checkpoint_set_aside`)"),
        Outcome("made again"),
        "sinks wait",
    ),
    Part(
        "backup",
        "backup.json",
        "BACKUP/`backup.json`",
        "nothing; the files beside it are those of the federation",
        Outcome("`shoal restore` refuses the backup", "no backup that is whole"),
        Outcome("`shoal restore` refuses the backup", "no backup that is whole"),
        "nothing: it is read once",
    ),
)
ONLY_CONTENTS = {
    "`[client] signing_key_file`, `[server] client_keys`": "keys are made by `shoal keys`",
    "`[server] folder`/`history.db.damaged`": "nothing reads it",
    "`[client] folder`/`producer.SOURCE.db.damaged`": "nothing reads it",
    "FOLDER`.before-upgrade`, FOLDER`/.upgraded.json`": "what `--undo` compares",
    "`[replica] folder`/NAME": "tried in `test_replicas.py`, as a replica needs brokers",
    "`[server] folder`/page/FEDERATION": "tried in `test_page.py`, as no server or client has it",
    "`[client] folder`/NAME/`restored.txt`": "its presence alone counts",
}
"""files of the first table whose damage costs nothing but themselves, and why"""


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    kept = HEADER_BYTES if path.suffix == ".db" else 0
    content[kept:] = b"\xa5" * (len(content) - kept)
    path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The folder of a federation that has stopped, and its model."""
    folder = tmp_path_factory.mktemp("stopped")
    file = create_federation(folder, [CLIENT], readings=120, pool_clients=1)
    run_to_end(file, [CLIENT])
    # Where no server has run as a process there is none.
    (folder / "federation.db-lease").touch()
    return folder, model_of(file)


def model_of(file: Path) -> bytes:
    with resumed(open_server(load_config(file), clock=clock)) as server:
        while server.step():
            pass
        return model_bytes(server)


def run_client(file: Path) -> None:
    with resumed(open_client(load_config(file), CLIENT, clock=clock)) as client:
        while client.step():
            pass


def check(outcome: str, run: Callable[[], object]) -> None:
    """It ends with this error, or goes on."""
    if outcome == GOES_ON:
        run()
        return
    with pytest.raises(ShoalError, match=outcome) as refused:
        run()
    assert not refused.value.retriable, "it is not tried again and again"


@pytest.mark.parametrize("harm", [damage, remove])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.rsplit("/", 1)[-1])
def test_a_lost_file_costs_what_is_documented(
    file: File,
    harm: Callable[[Path], None],
    stopped: tuple[Path, bytes],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, model = stopped
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    harm(copy / file.path)
    outcome = file.damaged if harm is damage else file.absent
    federation = copy / "federation.toml"
    check(outcome.client, lambda: run_client(federation))
    is_new_log = file.path == "federation.db" and harm is remove
    assert ("federation_log_recreated" in caplog.messages) == is_new_log

    def the_same_model() -> None:
        assert model_of(federation) == model

    check(outcome.server, the_same_model)


def make_host(folder: Path) -> None:
    """A host of two clients that has learnt the readings of its site."""
    config = use_site_log(write_federation(folder))
    write_site(config, keyed("attic", 60, 1) + keyed("cellar", 60, 2))
    run_host(folder)


def run_host(folder: Path) -> None:
    with closing(Host(load_config(folder / "federation.toml"), clock=clock)) as host:
        while host.step():
            pass


def make_producer(folder: Path) -> None:
    """Readings that were fed from a file."""
    write_federation(folder)
    lines = [f"{1e9 + number},The attic,{number % 40},{50 + number % 9}" for number in range(50)]
    data = folder.with_name("readings.csv")
    data.write_text("\n".join(["time,site,warm,damp", *lines]) + "\n", encoding="utf-8")
    (folder / "source.txt").write_text(str(data), encoding="utf-8")
    run_producer(folder)


def run_producer(folder: Path) -> None:
    """Feed the same file again: every reading is in the log once, whatever the producer knows."""
    # Under its first path, as a file under another one is another source.
    data = (folder / "source.txt").read_text(encoding="utf-8")
    fed = ["--split", "column:site", "--time-column", "time"]
    arguments = ["--config", str(folder / "federation.toml"), data, *fed]
    result = CliRunner().invoke(producer, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (log,) = folder.glob("clients/*/readings.db")
    assert len(all_records(f"sqlite:{log}", READINGS)) == 50


def make_mqtt(folder: Path) -> None:
    """The file of a producer that has received nothing: its broker cannot be reached."""
    site = IngestSite(folder, port=1)
    own = site.config.client.folder / "attic"
    own.mkdir(parents=True)
    owner = f"the MQTT producer of client attic of {site.name}"
    with Checkpoint(own / "mqtt.db", owner) as checkpoint:
        checkpoint.save({"left": "behind"})


def run_mqtt(folder: Path) -> None:
    """As far as the broker: the file was read before."""
    config = load_config(folder / "federation.toml")
    silence = SilenceMonitor((), 0.0)
    ingest = open_mqtt_ingest(config, "attic", config.client.folder, IngestCounts(silence))
    with pytest.raises(LogUnavailable), ingest:
        pytest.fail("there is no broker")


def make_helper(folder: Path) -> None:
    """A federation with masked counts whose helpers have unmasked a round."""
    federation = MaskedFederation(folder, clients=3)
    federation.feed(1)
    federation.run()


def run_helper(folder: Path) -> None:
    federation = MaskedFederation.written_before(folder, clients=3, now=1e9 + 100)
    with federation.helper("h0") as helper:
        while helper.step():
            pass


def make_region(folder: Path) -> None:
    """Two regions that have contributed."""
    write_world(folder, 200, models=["nodes"])
    run_world(folder)


def run_bridge(folder: Path) -> None:
    """Go on, and find that the upstream federation has learnt nothing twice."""
    world = load_config(file_of(folder, WORLD))
    before = world_model(world)
    config = load_config(file_of(folder, next(iter(REGIONS))))
    upstream = load_upstream(config)
    assert upstream is not None
    with resumed(open_bridge(config, upstream.config, lambda _: None)) as bridge:
        while bridge.step():
            pass
    assert world_model(world) == before


def world_model(config: Config) -> bytes:
    """The model of the upstream federation, once its server has read all, encoded."""
    with resumed(open_server(config, clock=clock)) as server:
        while server.step():
            pass
        return pack(server.models()["nodes"].state()["half"])


def make_events(folder: Path) -> None:
    """Events that were all forwarded."""
    file = folder / "federation.toml"
    write_federation(folder)
    config = load_config(file)
    with closing(open_log(config.log)) as log:
        ensure_topics(log, config.contract, config.log)
        given = {"readings": 100, "at": 1e9, "cluster": 1, "share": 0.5}
        name = config.contract.federation
        for place in range(3):
            event = ClusterEventMessage(f"m/{place}/0", "birth", name, "m", place + 1, **given)
            log.publish(config.contract.events_topic, event.encode(), b"m", event.headers())
        log.flush()
    run_events(folder)


def run_events(folder: Path) -> None:
    """Deliver all that are left to a webhook, each once."""
    file = folder / "federation.toml"
    receiver = Receiver()
    try:
        section = f'\n[events]\nfolder = "events"\n[events.webhook]\nurl = "{receiver.url}"\n'
        before = file.read_text("utf-8").split("\n[events]")[0]
        file.write_text(before + section, encoding="utf-8")
        arguments = ["forward", "--config", str(file), "--until-idle", "0.1"]
        result = CliRunner().invoke(events_command, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert receiver.ids == ["m/0/0", "m/1/0", "m/2/0"]
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()


def make_backup(folder: Path) -> None:
    """A backup of a federation that has learnt."""
    federation = folder / "federation"
    federation.mkdir()
    run_to_end(create_federation(federation, [CLIENT], readings=60, pool_clients=1), [CLIENT])
    back_up(federation, folder / "backup")


def run_restore(folder: Path) -> None:
    restore(folder, folder.with_name("restored"), nothing_since=False)


MAKERS: dict[str, tuple[Callable[[Path], None], Callable[[Path], None]]] = {
    "host": (make_host, run_host),
    "producer": (make_producer, run_producer),
    "mqtt": (make_mqtt, run_mqtt),
    "helper": (make_helper, run_helper),
    "region": (make_region, run_bridge),
    "events": (make_events, run_events),
    "backup": (make_backup, run_restore),
}
"""name -> what makes a folder, and what reads it"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a name, which is made once."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name) / "made"
        folder.mkdir()
        MAKERS[name][0](folder)
        return folder / "backup" if name == "backup" else folder

    return make


@pytest.mark.parametrize("harm", [damage, remove])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.path.rsplit("/", 1)[-1])
def test_a_lost_file_of_one_process_costs_what_is_documented(
    part: Part,
    harm: Callable[[Path], None],
    made: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made(part.made), folder)
    path = min(folder.glob(part.path))
    harm(path)
    outcome = part.damaged if harm is damage else part.absent
    check(outcome.client, lambda: MAKERS[part.made][1](folder))
    is_set_aside = "set_aside" in outcome.text
    assert path.with_name(f"{path.name}.damaged").exists() == is_set_aside


def test_every_file_of_the_first_table_is_in_the_second() -> None:
    """A new file cannot be forgotten: the formats, the first table and the tests name the same."""
    text = DOCS.read_text(encoding="utf-8")
    contents = [
        line.split(" | ")[0].removeprefix("| ")
        for line in text.split("## What a damage costs")[0].splitlines()
        if line.startswith("| ") and not line.startswith("| file |")
    ]
    tried = {file.documented for file in FILES} | {part.documented for part in PARTS}
    assert {name for name in contents if name not in tried} == set(ONLY_CONTENTS)
    assert tried <= set(contents)
    for entry in FORMATS["Files"]:
        for name in re.findall(r"[\w.]+\.db", entry.kept.replace("federation.db", "")):
            assert f"`{name}`" in "".join(contents), f"{name} of {entry.place}"


def test_the_table_in_docs_is_that_of_the_tests() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for file in (*FILES, *PARTS):
        cells = (
            file.documented,
            file.made_from,
            file.damaged.text,
            file.absent.text,
            file.slow,
        )
        assert f"| {' | '.join(cells)} |\n" in text
