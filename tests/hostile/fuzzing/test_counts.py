"""Changed updates of private counts. They have a federation of their own, whose clients count and
do not learn rows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from shoal.config.settings import load_config
from shoal.runtime.service import resumed
from shoal.server_node.bootstrap import open_server
from shoal.server_node.ingest.ingest import RecordFailed
from shoal.transports import open_log
from tests.hostile.fuzzing import batches
from tests.hostile.fuzzing.test_messages import Unforeseen, changed
from tests.hostile.fuzzing.valid_messages import Message, is_far
from tests.house.counting_federation import create, run
from tests.house.small_federation import all_records, clock


def test_no_changed_update_of_counts_makes_a_server_fail(tmp_path: Path) -> None:
    file = create(tmp_path, 400)
    run(file)
    config = load_config(file)
    topic = config.contract.updates_topic
    seeds = [
        Message("clusters", record.value or b"", record.headers)
        for record in all_records(config.log.address, topic)
    ]
    assert seeds
    with resumed(open_server(config, clock=clock)) as node, closing(open_log(config.log)) as log:
        node._rejections.failed = Unforeseen()
        for batch in batches("counts", 0.05):
            for case in [changed(number, seeds) for number in batch]:
                log.publish(topic, case.value, case.key.encode(), case.headers)
            log.flush()
            try:
                while node.step():
                    pass
            except RecordFailed as failed:
                raise AssertionError(f"one of the cases {batch[0]} to {batch[-1]}") from failed
        view = node.models()["clusters"].view
    assert view is not None
    assert len(view.centres)
    assert not is_far(view.centres)
