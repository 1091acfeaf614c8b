"""The helper in Go of examples/ beside one of ours, in a federation on a real broker."""

from __future__ import annotations

import base64
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from shoal.helper_node.node import HelperNode
from shoal.helper_node.terms import helper_terms
from shoal.protocol.masked import CloseRound, HelperSum, MaskedCounts, packed_offsets
from shoal.transports import open_log
from tests.house.masked_federation import MaskedFederation
from tests.house.processes import wait_until
from tests.house.test_masked import decoded, plain_tree, publish

SOURCE: Final = Path(__file__).parents[2] / "examples" / "helper_in_go"
LINES_MAX: Final = {"helper.go": 300, "main.go": 115}
"""of the helper, which a works council reads, and of its connection to Kafka"""


@pytest.fixture(scope="module")
def program(go: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The helper, built."""
    file = tmp_path_factory.mktemp("go") / "helper_in_go"
    subprocess.run([go, "build", "-o", file, "."], cwd=SOURCE, check=True)
    return str(file)


def test_the_helper_in_go_is_short() -> None:
    about = (SOURCE / "README.md").read_text(encoding="utf-8")
    for file, lines_max in LINES_MAX.items():
        lines = (SOURCE / file).read_text(encoding="utf-8").splitlines()
        assert len(lines) <= lines_max
        assert max(map(len, lines)) <= 120
        assert f"`{file}`, {len(lines)} lines" in about


@pytest.mark.integration
def test_the_helper_in_go_reproduces_the_test_vectors(go: str) -> None:
    subprocess.run([go, "vet", "."], cwd=SOURCE, check=True)
    subprocess.run([go, "test", "."], cwd=SOURCE, check=True)


@contextmanager
def running(program: str, federation: MaskedFederation, broker: str) -> Iterator[Any]:
    """The helper h1, as a process that is killed at the end."""
    folder = federation.folder / "h1"
    terms = federation.folder / "terms.json"
    terms.write_text(json.dumps(helper_terms(federation.config.resolved)), encoding="utf-8")
    with (federation.folder / "h1.log").open("a") as output:
        words = [program, str(folder), str(terms), broker]
        process = subprocess.Popen(words, stdout=output, stderr=output)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def answers_of_ours(federation: MaskedFederation, secret: bytes) -> list[bytes]:
    """What a helper of ours with the key of h1 would have published."""
    answers = []
    messages = {}
    for record in federation.records(MaskedCounts.TYPE):
        messages[record.offset] = MaskedCounts.decode(record.value, record.headers)
    with closing(open_log(federation.config.log)) as log:
        unused: Any = None
        node = HelperNode(federation.config.resolved, secret, log, unused)
        node._log_name = federation.log_name
        for close in decoded(federation, CloseRound):
            entries = [messages[offset].entry for offset in close.places]
            answers.append(node._sum(close, entries).encode())
    return answers


@pytest.mark.integration
def test_the_helper_in_go_unmasks_a_federation_byte_for_byte_as_ours_and_refuses_the_same(
    program: str, kafka_bootstrap: str, tmp_path: Path
) -> None:
    made = subprocess.run(
        [program, "h1"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    state = json.loads((tmp_path / "h1" / "state.json").read_text(encoding="utf-8"))
    federation = MaskedFederation(
        tmp_path,
        clients=3,
        epsilon=30.0,
        privacy="clip = 40",
        address=f"kafka://{kafka_bootstrap}",
        secrets_of={"h1": bytes_of_text(state["Secret"])},
    )
    (key,) = re.findall(r'key = "(\w+)"', made)
    assert key == helper_terms(federation.config.resolved)["helpers"]["h1"]

    def has_plain_tree(rounds: int) -> bool:
        tree = federation.run(helpers=["h0"])
        # Started again it publishes its newest answer again, with the same bytes.
        sums = {helper_sum.value for helper_sum in federation.records(HelperSum.TYPE)}
        return len(sums) == 2 * rounds and tree == plain_tree(federation)

    federation.feed(1)
    federation.run(helpers=["h0"], clients=[])
    shutil.copytree(tmp_path / "h1", tmp_path / "new")
    with running(program, federation, kafka_bootstrap):
        wait_until(lambda: has_plain_tree(1))
    shutil.copytree(tmp_path / "h1", tmp_path / "copy")
    federation.feed(1, first=1)
    with running(program, federation, kafka_bootstrap):
        wait_until(lambda: has_plain_tree(2))
        own = sums_of(federation, "h1")
        assert set(own) == set(answers_of_ours(federation, federation.secret("h1")))
        # Another batch of the round, a round without messages, and the same question again.
        close = decoded(federation, CloseRound)[-1]
        fewer = replace(close, offsets=packed_offsets(close.places[:-1]), batch=bytes(32))
        publish(federation, fewer, replace(close, round=close.round + 1), close)
        wait_until(lambda: len(sums_of(federation, "h1")) > len(own))
        assert set(sums_of(federation, "h1")) == set(own)
        printed = (tmp_path / "h1.log").read_text(encoding="utf-8")
        assert printed.count("another batch of this round was answered before") == 1
        assert printed.count("messages that are not in the log") == 1
    for older in ("copy", "new"):
        shutil.rmtree(tmp_path / "h1")
        shutil.copytree(tmp_path / older, tmp_path / "h1")
        with running(program, federation, kafka_bootstrap) as process:
            assert process.wait(60) != 0
        assert "older than what this helper has published" in printed_last(tmp_path)
    (tmp_path / "h1" / "state.json").unlink()
    with running(program, federation, kafka_bootstrap) as process:
        assert process.wait(60) != 0
    assert "no such file" in printed_last(tmp_path), "there is no key without its state"
    assert set(sums_of(federation, "h1")) == set(own)


def bytes_of_text(text: str) -> bytes:
    """Bytes as Go's JSON has them."""
    return base64.b64decode(text)


def sums_of(federation: MaskedFederation, helper: str) -> list[bytes]:
    """The values of the sums of a helper in the log."""
    return [
        record.value or b""
        for record in federation.records(HelperSum.TYPE)
        if HelperSum.decode(record.value, record.headers).helper == helper
    ]


def printed_last(folder: Path) -> str:
    """The last line that the helper h1 has printed."""
    return (folder / "h1.log").read_text(encoding="utf-8").splitlines()[-1]
