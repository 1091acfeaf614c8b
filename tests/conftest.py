"""What all tests share: parts that may be missing on a machine, and small federations."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

from deploy.kafka.broker import what_is_missing
from shoal.kernels import forms
from shoal.kernels.forms import COMPILED, NUMPY, VARIABLE
from tests.deploy.docker_engine import what_is_missing as what_an_engine_lacks
from tests.examples import examples
from tests.kafka_broker import Broker, SharedBroker
from tests.kernels.both_forms import FORMS
from tests.mosquitto_broker import Mosquitto, mosquitto

# No test asserts a time, not even how fast examples are drawn: a machine may be busy. What decides
# about a change draws the same examples every time; runs elsewhere go on looking for new ones.
settings.register_profile(
    "shoal",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    max_examples=examples(100),
)
settings.load_profile("shoal")

# A process chooses its form of the kernels by itself, in the background. Both give the same bits,
# but a test should not depend on which one was used: the fixture `form` has those that compare
# them.
os.environ.setdefault(VARIABLE, NUMPY)
# `make test` asks for the compiled one in the process of the tests, where it saves a sixth of the
# time, and `make check` for NumPy's, so that it needs no Numba. Processes that tests start take
# NumPy's, as most end soon.
if os.environ.get("SHOAL_TEST_FORM") == COMPILED and importlib.util.find_spec("numba") is not None:
    forms.PROCESS = FORMS[COMPILED]


EXTERNAL = frozenset(
    {
        "chromium",
        "promtool",
        "prometheus",
        "systemd_analyze",
        "jq",
        "data_folder",
        "compose_1",
        "compose_2",
        "can_run_mosquitto",
        "mosquitto_port",
        "can_run_kafka",
        "kafka_bootstrap",
        "own_broker",
        "can_run_docker",
        "spark_engine",
        "quix_streams",
        "go",
    }
)
"""fixtures of parts outside Python: a test that uses one is marked `external`"""
LONG = (
    "tests/deploy",
    "tests/house",
    "tests/reproduction",
    "tests/benchmarks",
    "tests/hostile",
    "tests/extending",
    "tests/onebox",
    "tests/replay",
    "tests/test_wheel.py",
    "tests/test_docs.py",
    "tests/test_docs_kafka.py",
    "tests/test_distribution.py",
    "tests/cli/test_log_commands.py",
    "tests/privacy/test_audit_",
    "tests/server_node/test_rounds_stream.py",
    "tests/server_node/test_pictures.py",
    "tests/algorithms/test_density_tree_delay.py",
    "tests/algorithms/test_rounds_from_counts.py",
    "tests/cli/test_privacy_audit_command.py",
    "tests/transports/test_kafka_away.py",
    "tests/laws/test_log_model.py",
    "tests/laws/test_log_processes.py",
    "tests/transports/test_sqlite_trouble.py",
    "tests/server_node/test_web_restart.py",
    "tests/producers/test_producer_command.py",
    "tests/golden",
    "tests/cli/test_cli.py",
    "tests/algorithms/test_cluster_tree_steady.py",
    "tests/laws/test_log_retention.py",
    "tests/algorithms/test_states_served.py",
    "tests/algorithms/test_cluster_tree_parts.py",
    "tests/estimators/test_states",
    "tests/server_node/test_unlearning",
    "tests/server_node/test_changes.py",
    "tests/server_node/test_unusual.py",
    "tests/server_node/test_times.py",
    "tests/server_node/test_snapshot_export.py",
    "tests/transports/test_sqlite_b",
    "tests/kernels/test_compiled",
    "tests/kernels/test_forms.py",
    "tests/privacy/test_compiled_noise.py",
    "tests/laws/test_rounds_laws.py",
    "tests/laws/test_counting_laws.py",
    "tests/kernels/test_forged_plans.py",
    "tests/estimators/test_sklearn.py",
    "tests/algorithms/test_choice.py",
    "tests/producers/test_tables.py",
)
"""beginnings of the paths of tests that start many processes, or take long: they are marked `long`
and run first"""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether a file is not even imported: `make check` leaves out all of its tests. None: others
    may decide."""
    if "not long" not in config.option.markexpr:
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return True if path.endswith(".py") and path.startswith(LONG) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would look at all tests and modules again and
    again.

    It takes a third of the time of collecting, in every worker; nothing that is collected becomes
    garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what `make check` leaves out, and begin with long files, so that no worker ends long
    after the others."""

    @cache
    def order(file: Path) -> int:
        path = file.relative_to(config.rootpath).as_posix()
        return next((place for place, name in enumerate(LONG) if path.startswith(name)), len(LONG))

    items.sort(key=lambda item: order(item.path))
    for item in items:
        # Numba takes seconds to load, and a minute to compile the kernels once: `make check` needs
        # none of it.
        if getattr(getattr(item, "callspec", None), "params", {}).get("form") == COMPILED:
            item.add_marker("long")
        if EXTERNAL & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("needs"):
            item.add_marker("external")
        if order(item.path) < len(LONG):
            item.add_marker("long")


def without(part: str, why: str) -> NoReturn:
    """A part is missing: skip with the reason, or fail where everything must be there."""
    if os.environ.get("CI"):
        pytest.fail(f"{part} is required here: {why}", pytrace=False)
    pytest.skip(f"{part}: {why}")


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """The logger is the process's: a test that starts a command in its own process leaves it as it
    was found."""
    logger = logging.getLogger("shoal")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture(params=[NUMPY, COMPILED])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs with NumPy's form of the kernels, and with the compiled one."""
    chosen: str = request.param
    if chosen == COMPILED and importlib.util.find_spec("numba") is None:
        without("numba", "it is not installed")
    monkeypatch.setattr(forms, "PROCESS", FORMS[chosen])
    return chosen


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a headless browser."""
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    return found or without("Chromium", "no chromium on the PATH; on Debian: apt install chromium")


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of Prometheus's own checker."""
    return shutil.which("promtool") or without(
        "promtool", "not on the PATH; on Debian: apt install prometheus"
    )


@pytest.fixture(scope="session")
def prometheus() -> str:
    """The path of Prometheus itself."""
    return shutil.which("prometheus") or without(
        "Prometheus", "not on the PATH; on Debian: apt install prometheus"
    )


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """A folder of data sets that are not shipped."""
    folder = Path(os.environ.get("SHOAL_DATA", ""))
    if not os.environ.get("SHOAL_DATA") or not folder.is_dir():
        without("data", "SHOAL_DATA does not name a folder of data sets; see tests/README.md")
    return folder


@pytest.fixture(scope="session")
def systemd_analyze() -> str:
    """The path of systemd's own checker; it needs no running systemd."""
    return shutil.which("systemd-analyze") or without(
        "systemd-analyze", "not on the PATH; on Debian: apt install systemd"
    )


@pytest.fixture(scope="session")
def jq() -> str:
    """The path of jq, which a recipe of the docs uses."""
    return shutil.which("jq") or without("jq", "not on the PATH; on Debian: apt install jq")


@pytest.fixture(scope="session")
def go() -> str:
    """The path of the Go tool, which builds the helper in Go."""
    # The second is where Go's own archive is unpacked.
    program = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    return program or without("Go", "not on the PATH; see go.dev/dl")


@pytest.fixture(scope="session")
def can_run_mosquitto() -> None:
    """For tests that need a broker of their own."""
    if mosquitto() is None:
        without("Mosquitto", "not on the PATH; on Debian: apt install mosquitto")


@pytest.fixture(scope="session")
def mosquitto_port(
    can_run_mosquitto: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of a real MQTT broker that all tests share."""
    broker = Mosquitto(tmp_path_factory.mktemp("mosquitto"))
    yield broker.port
    broker.stop()


@pytest.fixture(scope="session")
def can_run_kafka() -> None:
    """Java and Maven, for tests that need a broker of their own: to stop it, or to lock it up."""
    if (missing := what_is_missing()) is not None:
        without("Kafka", missing)


@pytest.fixture(scope="session")
def quix_streams() -> None:
    """What replicas are made of."""
    if importlib.util.find_spec("quixstreams") is None:
        without("Quix Streams", "it is not installed: pip install '.[scale]'")


@pytest.fixture(scope="session")
def can_run_docker(can_run_kafka: None) -> None:
    """What a Docker engine of the tests' own needs, and the jars that stand in for Kafka's
    image."""
    if (missing := what_an_engine_lacks()) is not None:
        without("Docker", missing)


@pytest.fixture
def own_broker(can_run_kafka: None, tmp_path: Path) -> Iterator[Broker]:
    """A broker that this test alone may stop and kill."""
    broker = Broker(tmp_path / "kafka")
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def compose_1() -> None:
    """Docker Compose of the first version, a program of its own."""
    if shutil.which("docker-compose") is None:
        without("Compose 1", "no docker-compose on the PATH; on Debian: apt install docker-compose")


@pytest.fixture(scope="session")
def compose_2() -> None:
    """Docker Compose of the second version, a plugin of Docker's."""
    words = ["docker", "compose", "version"]
    if (
        shutil.which("docker") is None
        or subprocess.run(words, capture_output=True, check=False).returncode != 0
    ):
        without("Compose 2", "docker does not know the command compose; see tests/README.md")


@pytest.fixture(scope="session")
def kafka_bootstrap(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """host:port of a real Kafka broker that all tests share: KAFKA_BOOTSTRAP, or one that is
    started for them."""
    if named := os.environ.get("KAFKA_BOOTSTRAP"):
        yield named
        return
    request.getfixturevalue("can_run_kafka")
    own = tmp_path_factory.getbasetemp()
    # The folders of all workers of one run lie side by side in one.
    broker = SharedBroker((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kafka")
    yield broker.bootstrap
    broker.leave()


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: syncs cost nothing, and a killed process loses no more
    than on a disk."""
    in_memory = Path("/dev/shm")
    if not os.access(in_memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=in_memory, prefix="shoal-test-") as folder:
        yield Path(folder)
