"""The numbers of docs/limits.md are those of the code, and the options that it names have them as defaults."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import pytest

from docs.blocks import ROOT
from reput_broker import serve
from reput_broker.config.model import BrokerConfig
from reput_broker.delay import feature as delay_feature
from reput_broker.ha import service as ha_service
from reput_broker.schedule import feature as schedule_feature
from reput_broker.schedule import messages as schedule_messages
from reput_broker.send import send_records
from reput_broker.server import gate, http_server
from reput_broker.store.index import query
from reput_broker.tables import tables
from reput_broker.transactions import feature as transaction_feature
from reput_client.consume import pull, send_back
from reput_client.produce import accumulator
from reput_client.produce.producer import ProducerOptions
from reput_protocol import names, properties
from reput_protocol.commands import dead_letters, group, pop, topic
from reput_protocol.filter import tags
from reput_protocol.filter.sql import sql_filter
from reput_protocol.record import compression, delays, put_block
from reput_protocol.wire import header, signature

PAGE: Final = ROOT / "docs" / "limits.md"
UNITS: Final = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1, "min": 60, "h": 3600, "days": 86_400}
"""Other words after a number name what is counted."""
FIXED: Final[dict[str, float]] = {
    "tag, keys and properties of a message together, names included": properties.SENT_PROPERTIES_BYTES_MAX,
    "body that was compressed, when it is unpacked": compression.INFLATED_BYTES_MAX,
    "block of `send_batch`, `send_many`, `post`": put_block.BLOCK_BYTES_MAX,
    "messages in a block of `post` and `send_many`": accumulator.BLOCK_MESSAGES,
    "messages in a batch of RocketMQ's clients": send_records.BATCH_MESSAGES_MAX,
    "fields of a header": header.FIELDS_MAX,
    "message body of a schedule": schedule_messages.BODY_BYTES_MAX,
    "reason of `nack` and `reject`": send_back._REASON_CHARACTERS_MAX,
    "topic": names.TOPIC_LENGTH_MAX,
    "retry and dead-letter topic": names.LONG_TOPIC_LENGTH_MAX,
    "group": names.GROUP_LENGTH_MAX,
    "client id": names._LABEL_BYTES_MAX,
    "user, which may have `. _ - @ +`": signature.NAME_LENGTH_MAX,
    "secret of a user, at least 16": signature.SECRET_LENGTH_MAX,
    "queues of a topic": topic.QUEUES_MAX,
    "tags in an expression": tags.TAGS_MAX,
    "SQL92 expression": sql_filter.CHARACTERS_MAX,
    "operands and operations of an SQL92 expression": sql_filter.PARTS_MAX,
    "nesting of an SQL92 expression": sql_filter.DEPTH_MAX,
    "schedules": tables._SCHEDULES_MAX,
    "definitions of all schedules": tables._SCHEDULES_BYTES_MAX,
    "slaves of a master": ha_service._SLAVES_MAX,
    "brokers of `reput serve --brokers`": serve.BROKERS_MAX,
    "longest of the 18 delay levels": delays.DELAY_LEVELS_MS[17] / 1000,
    "interval of a schedule": schedule_messages._INTERVAL_MAX_S,
    "redeliveries of a message": group.RETRY_MAX_TIMES,
    "messages of `PullConsumer.pull`, by default": pull.PULL_MESSAGES_MAX,
    "messages of `PopConsumer.receive`": pop.POP_MESSAGES_MAX,
    "messages found by a key": query.QUERY_MESSAGES_MAX,
    "dead letters in one request for a replay": dead_letters.REPLAYED_AT_ONCE_MAX,
    "messages in a list of delayed ones": delay_feature._LISTED_MAX,
    "transactions in a list": transaction_feature._LISTED_MAX,
    "connections of the HTTP port": http_server.CONNECTIONS_MAX,
    "TLS handshakes at once": gate.HANDSHAKES_MAX,
}
"""What no option sets, by the first cell of its row."""


class Row(NamedTuple):
    """A row of a table."""

    limit: str
    value: str
    option: str

    def __str__(self) -> str:
        return self.limit

    @property
    def number(self) -> float:
        """The value in bytes, in seconds, or of what is counted."""
        found = re.fullmatch(r"([0-9,]+) (\w+)", self.value)
        assert found is not None, self.value
        return int(found[1].replace(",", "")) * UNITS.get(found[2], 1)


def rows() -> list[Row]:
    """Return the rows of all tables of the page."""
    cells = [line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    found = [Row(*(cell.strip() for cell in row[:3])) for row in cells]
    return [row for row in found if row.limit != "Limit" and not row.limit.startswith("---")]


ROWS: Final = rows()


@pytest.mark.parametrize("row", [row for row in ROWS if row.option], ids=str)
def test_an_option_has_this_default(row: Row) -> None:
    default: object = BrokerConfig()
    for name in row.option.strip("`").split("."):
        default = getattr(default, name)
    assert default == row.number


@pytest.mark.parametrize("row", [row for row in ROWS if not row.option and row.limit in FIXED], ids=str)
def test_a_fixed_limit_has_this_number(row: Row) -> None:
    assert row.number == FIXED[row.limit]


def test_each_row_without_an_option_is_compared() -> None:
    fixed = {row.limit for row in ROWS if not row.option}
    assert fixed - FIXED.keys() == {"schedule, which may have `. _ : -`"}
    assert FIXED.keys() - fixed == set()
    assert len({row.limit for row in ROWS}) == len(ROWS)


def test_the_name_of_a_schedule() -> None:
    (row,) = (row for row in ROWS if row.limit.startswith("schedule, which"))
    length = int(row.number)
    assert schedule_feature._NAME.fullmatch("a" * length)
    assert schedule_feature._NAME.fullmatch("a._:-")
    assert schedule_feature._NAME.fullmatch("a" * (length + 1)) is None


def test_a_default_of_the_client_and_the_room_of_the_broker() -> None:
    """Numbers that the page has in its text."""
    text = PAGE.read_text(encoding="utf-8")
    assert f"adds up to {properties.BROKER_ROOM:,} bytes" in text
    assert "at `batch_bytes`, 1 MiB by default" in text
    assert ProducerOptions.batch_bytes == 1 << 20
