"""`shoal server` on a machine so busy that each update takes long: `slow_server.py SECONDS
ARGUMENT...`."""

from __future__ import annotations

import sys
import time
from typing import Any

from shoal.cli.main import main
from shoal.protocol.messages import Update
from shoal.server_node.models.base import Processed
from shoal.server_node.models.streaming import StreamingModel

SECONDS = float(sys.argv.pop(1))
process = StreamingModel.process


def process_slowly(model: StreamingModel, update: Update, *others: Any) -> Processed:
    time.sleep(SECONDS)
    return process(model, update, *others)


if __name__ == "__main__":
    StreamingModel.process = process_slowly  # type: ignore[method-assign]  # calls it
    main()
