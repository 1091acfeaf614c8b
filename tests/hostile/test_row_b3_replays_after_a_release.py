"""Row B3: what a client sent in quarantine is absorbed at no later time, whoever publishes it
again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.keyed_site import KeyedSite
from tests.server_node.server_fixture import updates_of
from tests.server_node.test_quarantine import absorbed_of, ask


@pytest.mark.parametrize("keyed", [False, True])
def test_updates_sent_in_quarantine_are_not_absorbed_after_the_release(
    tmp_path: Path, keyed: bool
) -> None:
    site = KeyedSite(tmp_path, keyed)
    sent = updates_of(site, *(("cellar", number) for number in range(1, 21)))
    site.send(*updates_of(site, ("attic", 1)), sent[0])
    ask(site, "cellar", "quarantine")
    site.send(*sent[1:])
    site.run()  # what is remembered is in the checkpoint
    ask(site, "cellar", "release")
    site.send(*sent[1:], *updates_of(site, ("cellar", 21)))
    model = site.run()
    assert absorbed_of(site, "cellar") == 2
    ask(site, "attic", "unlearn")
    unlearned = site.run()
    assert unlearned != model
    assert absorbed_of(site, "cellar") == 2
    site.delete_checkpoint()
    assert site.run(rebuild=True) == unlearned
    assert site.reasons() == []
