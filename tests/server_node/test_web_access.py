"""The rules of access by themselves: which tokens can be used, and how long a session lasts."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.errors import SettingsError
from shoal.server_node.outputs.web.access import SESSION_S, Access, make_access, read_token

TOKEN = "a-token-of-a-test-0123456789"


@pytest.mark.parametrize(
    "text", ["", "short", "with a space inside", "x" * 600, "ümlaut-ümlaut-ümlaut", "a\nb" * 9]
)
def test_a_token_that_cannot_be_sent_or_could_be_guessed_is_refused_and_not_shown(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "token").write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match="shoal keys token") as refused:
        read_token(tmp_path / "token")
    assert not text or text not in str(refused.value)


def test_a_missing_token_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        make_access("127.0.0.1", (), tmp_path / "missing")


def test_a_session_ends_and_belongs_to_its_token_and_its_kind_of_connection() -> None:
    now = [1e9]
    access = Access(token=TOKEN, clock=lambda: now[0])
    cookie = f"shoal-session={access.new_session()}"
    assert access.grant("", cookie, secure=False) == "session"
    assert access.grant("", cookie, secure=True) is None
    assert Access(token=TOKEN + "x", clock=lambda: now[0]).grant("", cookie, secure=False) is None
    assert Access(token=TOKEN, clock=lambda: now[0]).grant("", cookie, secure=False) == "session", (
        "after a restart"
    )
    now[0] += SESSION_S + 1
    assert access.grant("", cookie, secure=False) is None


def test_the_address_that_the_server_listens_on_is_a_name_of_it_and_a_wildcard_is_none() -> None:
    assert make_access("192.0.2.7").knows_host("192.0.2.7:8765")
    assert make_access("::1").knows_host("[::1]:8765")
    assert make_access("127.0.0.1", ["[2001:db8::1]"]).knows_host("[2001:DB8::1]")
    for wildcard in ("0.0.0.0", "::", ""):
        access = make_access(wildcard)
        assert not access.knows_host("0.0.0.0:8765")
        assert not access.knows_host("")
        assert access.knows_host("127.0.0.1:8765")


def test_the_token_is_not_shown_in_the_rules() -> None:
    assert TOKEN not in repr(Access(token=TOKEN))
