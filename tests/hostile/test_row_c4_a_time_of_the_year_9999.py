"""Row C4: a reading of the year 9999 does not stay the newest one of the federation for ever."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.server_node.ingest.quarantine import AHEAD_S_MAX
from tests.hostile.keyed_site import KeyedSite
from tests.server_node.chunked_updates import CONTRACT, in_chunks, large
from tests.small_plant import an_update

YEAR_9999 = 253_370_764_800.0


@pytest.mark.parametrize("chunked", [False, True])
def test_the_time_of_the_newest_reading_is_at_most_a_day_after_its_update_came(
    tmp_path: Path, chunked: bool
) -> None:
    site = KeyedSite(tmp_path, False, CONTRACT)
    before = time.time()
    forged = replace(
        large("cellar") if chunked else an_update(CONTRACT, "cellar"), newest_reading_at=YEAR_9999
    )
    site.send(an_update(CONTRACT), *(in_chunks(forged) if chunked else [forged]))
    model = site.run()
    newest = site.snapshots()[-1]
    assert newest.updates == 2
    assert newest.newest_reading_at is not None
    assert before < newest.newest_reading_at <= time.time() + AHEAD_S_MAX
    site.delete_checkpoint()
    assert site.run(rebuild=True) == model
    assert site.snapshots()[-1].newest_reading_at == newest.newest_reading_at
