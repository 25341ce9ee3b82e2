"""Positions of the numbers in a row of the kernel's table (`COLUMNS`).

A part's size is the number after its position.
"""

from __future__ import annotations

from typing import Final

from reput_protocol.kernel.records import COLUMNS

WIDTH: Final = len(COLUMNS)
POSITION: Final = COLUMNS.index("position")
SIZE: Final = COLUMNS.index("size")
QUEUE_ID: Final = COLUMNS.index("queue_id")
QUEUE_OFFSET: Final = COLUMNS.index("queue_offset")
PHYSICAL_OFFSET: Final = COLUMNS.index("physical_offset")
STORE_TIMESTAMP_MS: Final = COLUMNS.index("store_timestamp_ms")
SYS_FLAG: Final = COLUMNS.index("sys_flag")
FLAG: Final = COLUMNS.index("flag")
BORN_TIMESTAMP_MS: Final = COLUMNS.index("born_timestamp_ms")
RECONSUME_TIMES: Final = COLUMNS.index("reconsume_times")
PREPARED_TRANSACTION_OFFSET: Final = COLUMNS.index("prepared_transaction_offset")
BODY_CRC: Final = COLUMNS.index("body_crc")
BODY: Final = COLUMNS.index("body_position")
BODY_SIZE: Final = COLUMNS.index("body_size")
TOPIC: Final = COLUMNS.index("topic_position")
PROPERTIES: Final = COLUMNS.index("properties_position")
TAG: Final = COLUMNS.index("tag_position")
TAG_SIZE: Final = COLUMNS.index("tag_size")
UNIQUE_ID: Final = COLUMNS.index("unique_id_position")
KEYS: Final = COLUMNS.index("keys_position")
