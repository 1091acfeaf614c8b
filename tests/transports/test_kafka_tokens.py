"""Bearer tokens of a token endpoint: kept, renewed, and every failure with its reason and without
the secret."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import LogError, LogUnavailable, SettingsError, ShoalError
from shoal.transports.kafka.settings import KafkaSettings
from shoal.transports.kafka.tokens import (
    ANSWER_BYTES_MAX,
    KEPT_SHARE,
    LIFETIME_S,
    TokenEndpoint,
    token_source,
)
from tests.certificates import authority, signed
from tests.token_endpoint import Endpoint, token_endpoint

SECRET = "battery:staple %ü"
START = 1_700_000_000.0


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def secret_file(folder: Path, secret: str = SECRET) -> Path:
    file = folder / "client_secret"
    file.write_text(secret + "\n", encoding="utf-8")
    return file


def test_a_token_is_kept_for_most_of_its_lifetime_and_then_replaced(tmp_path: Path) -> None:
    clock = Clock()
    with token_endpoint("at:tic", SECRET, 100.0) as endpoint:
        source = TokenEndpoint(
            endpoint.url(), "at:tic", secret_file(tmp_path), "kafka other", clock=clock
        )
        assert source.token() == (endpoint.tokens[0], START + 100.0)
        clock.now = START + 100.0 * KEPT_SHARE - 1.0
        assert source.token() == (endpoint.tokens[0], START + 100.0)
        assert len(endpoint.forms) == 1
        clock.now += 2.0
        assert source.token() == (endpoint.tokens[1], clock.now + 100.0)
        assert endpoint.forms[0] == {"grant_type": "client_credentials", "scope": "kafka other"}


def test_a_clock_that_was_set_back_gets_a_new_token(tmp_path: Path) -> None:
    clock = Clock()
    with token_endpoint("attic", SECRET) as endpoint:
        source = TokenEndpoint(endpoint.url(), "attic", secret_file(tmp_path), clock=clock)
        source.token()
        clock.now -= 3600.0
        assert source.token()[1] < START
        assert len(endpoint.tokens) == 2


def test_a_token_serves_to_its_end_while_the_endpoint_is_away(tmp_path: Path) -> None:
    clock = Clock()
    with token_endpoint("attic", SECRET, 100.0) as endpoint:
        source = TokenEndpoint(endpoint.url(), "attic", secret_file(tmp_path), clock=clock)
        first = source.token()
    clock.now = START + 99.0
    assert source.token() == first
    clock.now = START + 100.0
    with pytest.raises(LogUnavailable, match="not reached"):
        source.token()


def test_a_secret_that_was_replaced_on_disk_is_used_for_the_next_token(tmp_path: Path) -> None:
    clock = Clock()
    with token_endpoint("attic", SECRET) as endpoint:
        source = TokenEndpoint(endpoint.url(), "attic", secret_file(tmp_path), clock=clock)
        source.token()
        endpoint.secret = "another"
        secret_file(tmp_path, "another")
        clock.now += 300.0
        assert source.token()[0] == endpoint.tokens[1]


def test_many_threads_share_a_token_and_a_failure(tmp_path: Path) -> None:
    clock = Clock()
    with token_endpoint("attic", SECRET) as endpoint:
        source = TokenEndpoint(endpoint.url(), "attic", secret_file(tmp_path), clock=clock)
        found: list[Any] = []

        def ask() -> None:
            try:
                found.append(source.token()[0])
            except ShoalError as error:
                found.append(str(error))

        def ask_at_once() -> None:
            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        ask_at_once()
        assert found == [endpoint.tokens[0]] * 8
        found.clear()
        endpoint.instead = (503, {}, b"")
        clock.now += 300.0
        ask_at_once()
        assert (len(found), len(set(found)), len(endpoint.forms)) == (8, 1, 2)
        assert "status 503" in found[0]
        endpoint.instead = None
        clock.now += 2.0
        assert source.token()[0] == endpoint.tokens[1]


@pytest.mark.parametrize("told", ["120", None, 0, -5, "soon", 1e400, [1]])
def test_a_lifetime_that_is_odd_or_not_told_has_a_default(told: Any, tmp_path: Path) -> None:
    with token_endpoint("attic", SECRET) as endpoint:
        given = {"access_token": "a.b-c", "expires_in": told}
        endpoint.instead = (200, {}, json.dumps(given).encode())
        source = TokenEndpoint(endpoint.url(), "attic", secret_file(tmp_path), clock=Clock())
        lifetime_s = 120.0 if told == "120" else LIFETIME_S
        assert source.token() == ("a.b-c", START + lifetime_s)


ELSEWHERE = {"Location": "http://127.0.0.1:9/"}


@pytest.mark.parametrize(
    ("instead", "error", "expected"),
    [
        ((400, {}, b'{"error": "invalid_scope"}'), LogError, "status 400, invalid_scope"),
        ((401, {}, b'{"error": "Secrets\\n of others"}'), LogError, r"status 401\)"),
        ((403, {}, b"nothing"), LogError, "refuses the client"),
        ((404, {}, b""), LogError, "oauth_url"),
        ((429, {}, b""), LogUnavailable, "status 429"),
        ((500, {}, b'{"error": "x"}'), LogUnavailable, "status 500"),
        ((302, ELSEWHERE, b""), LogError, "status 302"),
        ((307, ELSEWHERE, b""), LogError, "status 307"),
        ((200, {}, b"<html>"), LogError, "no JSON object"),
        ((200, {}, b"[]"), LogError, "no JSON object"),
        ((200, {}, b"[" * 100_000), LogError, "no JSON object"),
        ((200, {}, b" " * (ANSWER_BYTES_MAX + 1)), LogError, "no JSON object"),
        ((200, {}, b"{}"), LogError, "no access_token"),
        ((200, {}, b'{"access_token": 7}'), LogError, "no access_token"),
        ((200, {}, b'{"access_token": "a\\u0001auth=b"}'), LogError, "no access_token"),
    ],
)
def test_an_answer_without_a_token_has_its_reason(
    instead: tuple[int, dict[str, str], bytes],
    error: type[ShoalError],
    expected: str,
    tmp_path: Path,
) -> None:
    with token_endpoint("attic", SECRET) as endpoint:
        endpoint.instead = instead
        source = TokenEndpoint(endpoint.url(), "attic", secret_file(tmp_path))
        with pytest.raises(error, match=expected) as caught:
            source.token()
        assert len(endpoint.forms) == 1
    assert "others" not in str(caught.value)


def test_a_wrong_secret_is_neither_shown_nor_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with token_endpoint("attic", SECRET) as endpoint:
        source = TokenEndpoint(endpoint.url(), "attic", secret_file(tmp_path, "a guess"))
        with pytest.raises(LogError, match="invalid_client") as caught:
            source.token()
    shown = f"{caught.value!r} {caught.value.__cause__!r} {vars(source)} {caplog.text}"
    assert "guess" not in shown


def test_an_endpoint_by_tls_is_verified(tmp_path: Path) -> None:
    authority(tmp_path, "authority")
    signed(tmp_path, "endpoint", "subjectAltName=IP:127.0.0.1")
    pem = (tmp_path / "endpoint.key").read_text() + (tmp_path / "endpoint.crt").read_text()
    (tmp_path / "endpoint.pem").write_text(pem)
    other = authority(tmp_path, "other")
    secret = secret_file(tmp_path)
    with token_endpoint("attic", SECRET, certificate=tmp_path / "endpoint.pem") as endpoint:
        url = endpoint.url("https")

        def token(ca_file: Path | None, where: str = url) -> str:
            return TokenEndpoint(where, "attic", secret, ca_file=ca_file).token()[0]

        assert token(tmp_path / "authority.crt") == endpoint.tokens[0]
        for untrusted in (other, None):
            with pytest.raises(LogError, match="check oauth_ca_file"):
                token(untrusted)
        with pytest.raises(LogError, match="check oauth_ca_file"):
            token(tmp_path / "authority.crt", url.replace("127.0.0.1", "localhost"))
        with pytest.raises(SettingsError, match=r"nowhere\.crt: cannot be read as"):
            token(tmp_path / "nowhere.crt")
        # Text in place of a certificate, as of a download that failed.
        with pytest.raises(SettingsError, match="client_secret: cannot be read as"):
            token(secret)
        assert len(endpoint.forms) == 1


LOGIN = {"sasl": "oauthbearer", "tls": True, "secret_file": Path("s"), "user": "u"}


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"oauth_url": "http://idp.example/token"}, "https://"),
        ({"oauth_url": "https://me:secret@idp.example/token"}, "pattern"),
        ({"oauth_url": "ftp://idp.example/token"}, "pattern"),
        ({"oauth_url": "https://"}, "pattern|https://host/path"),
        ({"oauth_url": "https:///token"}, "https://host/path"),
        ({"oauth_url": "https://idp.example:port/token"}, "https://host/path"),
        ({"oauth_url": "https://[idp/token"}, "https://host/path"),
        ({"oauth_url": "https://idp.example/token", "user": ""}, "client id"),
        ({"oauth_url": "https://idp.example/token", "sasl": "plain"}, "oauthbearer"),
        ({"oauth_scope": "kafka"}, "set oauth_url"),
        ({"oauth_ca_file": Path("c")}, "set oauth_url"),
    ],
)
def test_settings_of_an_endpoint_that_cannot_be_are_refused(
    section: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        KafkaSettings.model_validate(LOGIN | section)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:8080"])
def test_an_endpoint_on_this_machine_needs_no_tls(host: str) -> None:
    settings = KafkaSettings.model_validate(LOGIN | {"oauth_url": f"http://{host}/token"})
    assert settings.oauth_url.startswith("http://")


def endpoint_settings(endpoint: Endpoint, folder: Path) -> KafkaSettings:
    given = {"oauth_url": endpoint.url(), "secret_file": secret_file(folder)}
    return KafkaSettings.model_validate(LOGIN | given)


def test_all_connections_of_a_process_share_the_tokens_of_the_same_settings(
    tmp_path: Path,
) -> None:
    with token_endpoint("u", SECRET) as endpoint:
        settings = endpoint_settings(endpoint, tmp_path)
        first = token_source(settings).token()
        assert token_source(settings.model_copy()).token() == first
        scoped = settings.model_copy(update={"oauth_scope": "kafka"})
        assert token_source(scoped).token() != first
        assert [form.get("scope") for form in endpoint.forms] == [None, "kafka"]


def test_a_process_with_another_login_loads_no_http_client() -> None:
    # A client of the edge is to stay small.
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, shoal.transports.kafka.log; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "kafka" in loaded
    assert not {"shoal.transports.kafka.tokens", "urllib.request"} & set(loaded)
