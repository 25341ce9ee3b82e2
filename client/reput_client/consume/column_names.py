"""The columns of messages: native ones with RocketMQ's names, and those of Spark's Kafka source.

Spark's source, archives and the client's Arrow readers have the same names and types. Any subset may be read, in any
order; columns left out are not decoded.
"""

from __future__ import annotations

from typing import Final

NATIVE_COLUMNS: Final = {
    "topic": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "brokerName": "string",
    "keys": "string",
    "tags": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "flag": "int",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "physicalOffset": "bigint",
    "reconsumeTimes": "int",
    "bodyCRC": "int",
}
"""Spark types of the native columns, in order; `keys` holds keys separated by spaces."""

KAFKA_COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
"""The columns of Spark's Kafka source; `timestampType` is 1, the log's append time."""

KAFKA_HEADERS: Final = "array<struct<key:string,value:binary>>"
"""Type of the column `headers`, which Spark's option `includeHeaders` adds."""
