"""The sizes that messages and records may have, in bytes: every limit of a message is declared here
and nowhere else.

The log's own limits (topics, partitions, what a file can hold) are in `shoal.transports.base`.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

PACKED_BYTES_MAX = 64 * MIB
"""largest packed value that is decoded: a message, or a process's own saved state"""
RECORD_BYTES_MAX = 32 * MIB
"""largest record of a federation's topics, with its key and headers"""
MESSAGE_BYTES_MAX = RECORD_BYTES_MAX - 64 * KIB
"""largest value of such a record"""
UPDATE_BYTES_MAX = 64 * MIB
"""largest update, all its chunks together (`shoal.protocol.chunking`)"""
UPDATE_RECORD_BYTES_MAX = 960 * KIB
"""largest record of updates by default: with what Kafka adds, below the 1 MiB that brokers accept
by default"""
EVENT_BYTES_MAX = 64 * KIB
"""largest record of a cluster event"""
HISTORY_BYTES_MAX = 512 * KIB
"""largest record of the history: the names of 1000 clients and 1000 clusters"""
LABEL_BYTES_MAX = 4 * KIB
"""largest record of a published label"""
UPDATE_HEADERS_BYTES_MAX = KIB
"""largest key and headers of a record of updates, together"""
ORIGINAL_HEADERS_BYTES_MAX = 64 * KIB
"""most bytes of the headers of a rejected message that are kept with it"""
COPY_BYTES = MIB
"""bytes by which records of a topic for rejected messages may be larger than the originals: room
for more headers"""
DEFAULT_RECORD_BYTES_MAX = 8 * MIB
"""largest record of a topic that declares no limit of its own, such as readings"""
