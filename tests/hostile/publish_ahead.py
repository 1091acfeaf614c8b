"""Publishes one update with a clock that is eight days ahead: `publish_ahead.py
FEDERATION_FILE`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

true_time = time.time
time.time = lambda: true_time() + 8 * 86400

if __name__ == "__main__":
    from shoal.config.settings import load_config
    from shoal.protocol.messages import Update
    from shoal.transports import open_log
    from tests.small_plant import an_update

    config = load_config(Path(sys.argv[1]))
    log = open_log(config.log)
    topic = config.contract.updates_topic
    log.ensure(topic)
    update = an_update(config.contract, client="ahead")
    log.publish(topic, update.encode(), config.contract.update_key(update.model), Update.headers())
    log.close()
