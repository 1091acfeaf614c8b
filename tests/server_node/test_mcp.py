"""`shoal mcp` as an assistant's program starts it: the tools are the server's GET operations, with
their answers and errors."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from shoal.server_node.outputs.mcp_command import mcp
from shoal.server_node.outputs.web import page_server
from shoal.server_node.outputs.web.access import make_access
from shoal.server_node.report.status import StatusBoard
from tests.server_node.web_statuses import a_contract, a_snapshot, a_status, some_nodes

pytest.importorskip("mcp", reason="the extra mcp is not installed")
from mcp import Client, StdioServerParameters

TOKEN = "a-token-of-a-test-0123456789"


@pytest.fixture(scope="module")
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def url(token_file: Path) -> Iterator[str]:
    """The page of a server that asks for a token."""
    contract = a_contract(models=("fcac",))
    status = a_status(contract, [a_snapshot(contract, some_nodes(2, 3, 30))])
    web = page_server(
        StatusBoard(status),
        CollectorRegistry(),
        access=make_access("127.0.0.1", (), token_file),
    )
    yield f"http://127.0.0.1:{web.start()}"
    web.stop()


def direct(url: str, path: str) -> Any:
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def asked(url: str, options: list[str], calls: list[tuple[str, dict[str, Any]]]) -> Any:
    """(tools by name, for each call its text and whether it is an error) of a real process."""

    async def talk() -> Any:
        arguments = ["-m", "shoal", "mcp", "--url", url, *options]
        process = StdioServerParameters(command=sys.executable, args=arguments)
        async with Client(process) as client:
            answers = [await client.call_tool(*call) for call in calls]
            tools = (await client.list_tools()).tools if options else []
        return {tool.name: tool for tool in tools}, [
            (answer.content[0].text, answer.is_error) for answer in answers
        ]

    return anyio.run(partial(talk))


def test_its_tools_are_the_operations_that_only_read_and_answer_what_http_answers(
    url: str, token_file: Path
) -> None:
    status = direct(url, "/v1/clusters")
    identity = status["clusters"][0]["identity"]
    calls = [
        ("clusters", {"model": "fcac"}),
        ("clusters_identity_histograms", {"identity": identity}),
        ("clusters_identity_histograms", {"identity": "../../status"}),
        ("clusters_identity_histograms", {}),
        ("clusters", {"model": "other"}),
        ("clusters", {"modle": "fcac"}),
        ("post_predict", {}),
    ]
    tools, answers = asked(url, ["--token-file", str(token_file)], calls)
    document = direct(url, "/v1/openapi.json")
    readable = {
        operation["operationId"].removeprefix("get_")
        for path in document["paths"].values()
        for method, operation in path.items()
        if method == "get"
    }
    assert set(tools) == readable - {"status_stream"}
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert tools["clusters_identity_histograms"].input_schema["required"] == ["identity"]
    (clusters, failed), (histograms, _), *errors = answers
    assert not failed
    assert json.loads(clusters) == status
    assert json.loads(histograms) == direct(url, f"/v1/clusters/{identity}/histograms")
    assert all(failed for _, failed in errors)
    words = [text for text, _ in errors]
    assert "identity" in words[1]
    assert words[2].startswith("404: ")
    assert "modle" in words[3]
    assert "clusters" in words[4], "the tools that there are"


def test_without_the_token_nothing_is_answered_and_the_reason_is_told(url: str) -> None:
    _, ((text, failed),) = asked(url, [], [("clusters", {})])
    assert failed
    assert text.startswith("401: ")


def test_a_token_is_not_sent_unencrypted_to_another_machine(token_file: Path) -> None:
    options = ["--url", "http://shoal.example", "--token-file", str(token_file)]
    result = CliRunner().invoke(mcp, options)
    assert "https" in str(result.exception)
    assert TOKEN not in str(result.exception)
