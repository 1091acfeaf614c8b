"""Row 11: who may read the page and name clusters. Host names, the token, the session of the page,
TLS."""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from shoal.server_node.outputs.web.access import cookie_name, make_access
from tests.hostile.served_page import Answer, ServedPage, serving
from tests.house.processes import wait_until

TOKEN = "a-token-of-a-test-0123456789"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def open_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with serving(
        tmp_path_factory.mktemp("open"), 'allowed_hosts = ["shoal.example", "server"]\n'
    ) as page:
        yield page


@pytest.fixture(scope="module")
def guarded_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(f"{TOKEN}\n", encoding="ascii")
    with serving(folder, 'allowed_hosts = ["shoal.example"]\ntoken_file = "token"\n') as page:
        yield page


def log_in(page: ServedPage, token: str = TOKEN, **more: str) -> Answer:
    return page.request("/session", FORM | more, "POST", urlencode({"token": token}))


def cookie_of(answer: Answer) -> str:
    return (answer.headers["set-cookie"] or "").partition(";")[0]


@pytest.mark.parametrize(
    "path",
    ["/", "/livez", "/metrics", "/v1/status", "/v1/snapshot", "/v1/status/stream", "/session"],
)
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "[bad", ""]
)
def test_a_request_under_a_foreign_host_name_is_refused(
    open_page: ServedPage, path: str, host: str
) -> None:
    assert open_page.request(path, {"Host": host}).status == 421


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:80", "[::1]:8765", "shoal.example:443", "SERVER"]
)
def test_a_request_under_a_name_of_this_server_is_answered(
    open_page: ServedPage, host: str
) -> None:
    assert open_page.request("/livez", {"Host": host}).status == 200


@pytest.mark.parametrize(
    "path",
    ["/", "/readyz", "/metrics", "/v1/status", "/v1/snapshot", "/v1/status/stream", "/page.js"],
)
def test_without_the_token_only_livez_answers(guarded_page: ServedPage, path: str) -> None:
    assert guarded_page.request("/livez").status == 200
    for headers in (
        {},
        {"Authorization": "Bearer wrong-wrong-wrong-wrong"},
        {"Authorization": TOKEN},
    ):
        answer = guarded_page.request(path, headers)
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert b"shoal_" not in answer.body


def test_the_token_opens_every_path(guarded_page: ServedPage) -> None:
    wait_until(lambda: guarded_page.request("/readyz", BEARER).status != 503)
    for path in ("/", "/readyz", "/metrics", "/v1/status", "/v1/privacy", "/page.js"):
        assert guarded_page.request(path, BEARER).status == 200


def test_a_browser_gets_a_form_and_the_token_a_session_that_scripts_cannot_read(
    guarded_page: ServedPage,
) -> None:
    form = guarded_page.request("/", {"Accept": "text/html"})
    assert form.status == 401
    assert b"<form" in form.body
    assert "form-action 'self'" in form.headers["content-security-policy"]
    logged_in = log_in(guarded_page)
    assert logged_in.status == 303
    attributes = {part.strip().lower() for part in logged_in.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert TOKEN not in logged_in.headers["set-cookie"]
    session = {"Cookie": cookie_of(logged_in)}
    assert guarded_page.request("/v1/status", session).status == 200
    assert guarded_page.request("/", session).status == 200


def test_a_wrong_token_and_a_form_of_another_site_get_no_session(guarded_page: ServedPage) -> None:
    for answer in (
        log_in(guarded_page, "wrong-wrong-wrong-wrong"),
        log_in(guarded_page, Origin="http://evil.example"),
        log_in(guarded_page, **{"Sec-Fetch-Site": "cross-site"}),
    ):
        assert answer.status in (401, 403)
        assert answer.headers["set-cookie"] is None


def test_how_long_a_comparison_takes_tells_nothing_of_the_token_or_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is given, texts of one length are compared, to their ends."""
    compared = []
    is_equal = hmac.compare_digest

    def noted(given: bytes, right: bytes) -> bool:
        compared.append((len(given), len(right)))
        return is_equal(given, right)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="ascii")
    access = make_access("127.0.0.1", [], file)
    given = ["", TOKEN[0], TOKEN[:-1], TOKEN, f"{TOKEN}0", "ä" * 10_000]
    assert [access.is_token(text) for text in given] == [text == TOKEN for text in given]
    session = access.new_session()
    ends = session.partition(".")[0]
    forged = [f"{ends}.{'0' * 64}", session[:-1] + "-", session]
    name = cookie_name(secure=False)
    grants = [access.grant("", f"{name}={value}", secure=False) for value in forged]
    assert grants == [None, None, "session"]
    assert len(compared) == len(given) + len(forged)
    assert all(given == right for given, right in compared)


def test_a_session_that_was_changed_opens_nothing(guarded_page: ServedPage) -> None:
    name, _, value = cookie_of(log_in(guarded_page)).partition("=")
    expires, _, rest = value.partition(".")
    for forged in (
        f"{int(expires) + 1}.{rest}",
        f"{expires}.{'0' * len(rest)}",
        "",
        ".",
        "x.y",
        f"{expires}.",
    ):
        assert guarded_page.request("/v1/status", {"Cookie": f"{name}={forged}"}).status == 401


def test_only_with_the_token_or_a_session_of_this_page_a_cluster_may_be_named(
    guarded_page: ServedPage,
) -> None:
    session = {"Cookie": cookie_of(log_in(guarded_page)), "Content-Type": "application/json"}
    here = {"Host": "shoal.example", "X-Forwarded-For": "192.0.2.7"}

    def name(headers: dict[str, str]) -> int:
        return guarded_page.request(
            "/v1/clusters/0/name", headers, "POST", '{"name": "night"}'
        ).status

    unknown_cluster = 404  # the request was accepted, as this server has no clustering yet
    assert name(here | session | {"Origin": "http://shoal.example"}) == unknown_cluster
    of_this_page = {"Origin": "https://shoal.example", "Sec-Fetch-Site": "same-origin"}
    assert name(here | session | of_this_page) == unknown_cluster
    assert name(here | BEARER | {"Content-Type": "application/json"}) == unknown_cluster
    assert name(here | session | {"Origin": "http://evil.example"}) == 403
    assert name(here | session | {"Sec-Fetch-Site": "same-site"}) == 403
    assert name(here | session | {"Content-Type": "text/plain"}) == 415
    assert name(here | {"Content-Type": "application/json"}) == 401


def test_the_page_is_served_over_tls_and_its_session_is_sent_over_tls_only(
    certificate: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(TOKEN, encoding="ascii")
    files = "".join(
        f'{name}_file = "{certificate}/{name}.pem"\n' for name in ("certificate", "key")
    )
    with serving(
        tmp_path, f'token_file = "token"\n{files}', authority=certificate / "certificate.pem"
    ) as page:
        assert (page.address() or "").startswith("https://")
        assert page.request("/livez").status == 200
        logged_in = log_in(page)
        assert logged_in.status == 303
        assert "secure" in {
            part.strip().lower() for part in logged_in.headers["set-cookie"].split(";")
        }
        with page.socket() as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")
