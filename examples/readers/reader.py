"""The newest snapshot of each model and the cluster events of a federation, read from Kafka without
shoal.

pip install 'kafka-python[crc32c]' msgpack numpy; python reader.py 127.0.0.1:9092 plant
"""

import json
import struct
import sys

import msgpack
import numpy as np
from kafka import KafkaConsumer


def array(code: int, data: bytes) -> np.ndarray:
    """An array: type of its elements (3 characters), dimensions (1 byte), sizes (8 bytes each),
    elements."""
    if code != 1:
        raise ValueError(f"extension type {code} is no array")
    sizes = struct.unpack_from(f"<{data[3]}Q", data, 4)
    return np.frombuffer(data, data[:3].decode(), offset=4 + 8 * data[3]).reshape(sizes)


broker, federation = sys.argv[1:]
snapshots = f"{federation}.snapshots"
events = f"{federation}.events"
newest = {}
for record in KafkaConsumer(
    snapshots,
    events,
    bootstrap_servers=broker,
    auto_offset_reset="earliest",
    consumer_timeout_ms=5000,
):
    headers = dict(record.headers)
    if headers.get("v") == b"1" and headers.get("type") == b"cluster_event":
        print(json.loads(record.value)["text"])
    elif headers.get("v") == b"1" and headers.get("type") == b"snapshot":
        newest[record.key] = msgpack.unpackb(record.value, ext_hook=array)
for snapshot in newest.values():
    shapes = {name: list(values.shape) for name, values in snapshot["arrays"].items()}
    print(snapshot["model"], "version", snapshot["version"], json.dumps(shapes, sort_keys=True))
