"""Row B4: a webhook that answers with a redirect gets no token sent elsewhere, and no event counts
as delivered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import LogUnavailable
from tests.server_node.test_forwarding import Receiver, configured, event, forward, publish


@pytest.fixture
def receivers() -> Iterator[tuple[Receiver, Receiver]]:
    """The one in the settings, and the one that it redirects to."""
    two = Receiver(), Receiver()
    yield two
    for receiver in two:
        receiver.server.shutdown()
        receiver.server.server_close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_with_the_token_and_the_event_is_tried_again(
    tmp_path: Path, receivers: tuple[Receiver, Receiver], status: int
) -> None:
    named, other = receivers
    named.location = other.url
    named.statuses = [status]
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o600)
    config = configured(tmp_path, f'[events.webhook]\nurl = "{named.url}"\ntoken_file = "token"')
    publish(config, event(1))
    with pytest.raises(
        LogUnavailable, match=f"answered {status}, a redirect, which is not followed"
    ):
        forward(config)
    assert other.requests == 0
    forward(config)
    assert named.ids == ["rooms/1/0"]
