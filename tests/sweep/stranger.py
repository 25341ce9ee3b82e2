"""What the stranger asks, and what is wrong about the answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Self

from reput_protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from reput_protocol.commands.base import RequestType, Sender, named_fields
from reput_protocol.commands.table import REQUESTS
from reput_protocol.names import Names, retry_topic
from reput_protocol.properties import encode_properties
from reput_protocol.property_rules import RULES, PropertyRule
from reput_protocol.record.put_block import BatchItem, encode_batch, encode_block
from reput_protocol.record.record import record_views
from reput_protocol.wire.header import Header, HeaderType, Value
from support.raw_client import RawClient
from support.typed_requests import request_of
from sweep.world import CLIENT, CONFIDENTIAL, DELAYED_ID, HALF_ID, OWN, STRANGER, TOPIC, UNIQUE_ID, World, hidden_names

_BORN_MS: Final = 1_700_000_000_000
_CHECKED: Final = frozenset({Names.TOPIC, Names.TOPICS, Names.POPPED_TOPIC, Names.GROUP, Names.GROUPS})


class Stranger:
    """One connection of the stranger; `wrong` lists what an answer gave away, `attempts` counts requests."""

    def __init__(self, address: str, header_type: HeaderType) -> None:
        self._client = RawClient(address, header_type, credentials=STRANGER)
        self._header_type = header_type
        self.wrong: list[str] = []
        self.attempts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, code: int, ext: dict[str, Value], body: bytes = b"") -> Header | None:
        """Make a request; return the header of the answer, None if this header type cannot have the code."""
        if self._header_type is HeaderType.BINARY and code > 0x7FFF:
            return None
        self.attempts += 1
        header, answer = self._client.request(code, ext, body)
        said = f"{header.remark} {header.ext}".encode() + answer
        if CONFIDENTIAL in said:
            self.wrong.append(f"request {code} {ext} {body[:200]!r} tells {said[:500]!r}")
        return header

    # Fields

    def try_fields(self) -> None:
        """Put a name of others, and one that does not exist, into each field that names something."""
        for row in REQUESTS.values():
            if row.sender is Sender.TO_CLIENTS:
                continue
            for field in (*named_fields(row.header), *named_fields(row.body)):
                for existing, missing in hidden_names(field.names):
                    answers = [self._ask_with(row, field.path, name) for name in (existing, missing)]
                    if field.names is not Names.CLIENT:  # an id of an open connection is refused as such
                        self._judge(row, field.path, existing, answers)
                    is_checked = field.names in _CHECKED and field.path not in row.fields
                    for header in answers:
                        if header is not None and (is_checked or row.cluster is not None):
                            self._expect_refusal(row, field.path, header)

    def _ask_with(self, row: RequestType, path: str, name: str) -> Header | None:
        ext, body = request_of(row, lambda at, names: name if at == path else OWN[names])
        header = self.ask(row.code, ext, body)
        if header is not None and header.remark is not None:
            parts = {name, *re.split("[;,]", name), name.rpartition("%")[2]}
            for part in sorted(parts, key=len, reverse=True):
                header.remark = header.remark.replace(part, "NAME")
        return header

    def _judge(self, row: RequestType, path: str, existing: str, answers: Sequence[Header | None]) -> None:
        said = [None if header is None else (header.code, header.remark) for header in answers]
        if said[0] != said[1]:
            self.wrong.append(f"{row.code.name} {path}: {existing} is told from what does not exist: {said}")

    def _expect_refusal(self, row: RequestType, path: str, header: Header) -> None:
        if header.code != ResponseCode.NO_PERMISSION or "lacks the right" not in (header.remark or ""):
            self.wrong.append(f"{row.code.name} {path}: not refused: {header.code} {header.remark}")

    # Properties

    def try_properties(self, world: World, *, quick: bool = False) -> None:
        """Send messages to own topics with each property that the broker acts on, in each form of a request."""
        company = _company(world)[: 1 if quick else None]
        for rule in RULES:
            world.beat()
            for value in _values(rule, world):
                properties = {rule.name + "X" * rule.is_prefix: value}
                for more in company:
                    self._send({**more, **properties})

    def _send(self, properties: dict[str, str]) -> None:
        text, topic = encode_properties(properties), OWN[Names.TOPIC]
        is_half = properties.get("TRAN_MSG") == "true"
        flag = MessageSysFlag.TRANSACTION_PREPARED if is_half else 0
        alone = _fields(topic, text, flag)
        answer = self.ask(RequestCode.SEND_MESSAGE_V2, alone, b"own")
        if is_half and answer is not None and answer.code == 0:
            self._commit(answer)
        self.ask(RequestCode.SEND_MESSAGE_V2, _fields(retry_topic(OWN[Names.GROUP]), text, 0), b"own")
        self.ask(RequestCode.SEND_REPLY_MESSAGE_V2, alone, b"own")
        batch = encode_batch([BatchItem(0, b"own", text)])
        self.ask(RequestCode.SEND_BATCH_MESSAGE, {**_fields(topic, b"", 0), "m": "true"}, batch)
        block, _ = encode_block([b"own"], [text], topic, 0, _BORN_MS)
        put: dict[str, Value] = {"topic": topic, "queueId": "0", "count": "1", "ack": "page_cache"}
        self.ask(RequestCode.PUT_MESSAGE, put, bytes(block))

    def _commit(self, sent: Header) -> None:
        end: dict[str, Value] = {
            "producerGroup": OWN[Names.PRODUCER_GROUP],
            "tranStateTableOffset": sent.ext["queueOffset"],
            "commitLogOffset": str(int(str(sent.ext["msgId"])[16:], 16)),
            "commitOrRollback": str(MessageSysFlag.TRANSACTION_COMMIT),
        }
        self.ask(RequestCode.END_TRANSACTION, end)

    # What is stored

    def give_up_all(self) -> int:
        """Make dead letters of all messages of the own topics, as a consumer does; return how many there were."""
        given_up = 0
        for topic in (OWN[Names.TOPIC], retry_topic(OWN[Names.GROUP])):
            for offset in self._stored(topic):
                back: dict[str, Value] = {"group": OWN[Names.GROUP], "offset": str(offset), "delayLevel": "-1"}
                header = self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)
                given_up += header is not None and header.code == 0
        return given_up

    def _stored(self, topic: str) -> Iterator[int]:
        for queue_id in range(4):
            offset = 0
            while True:
                place: dict[str, Value] = {
                    "consumerGroup": OWN[Names.GROUP], "topic": topic, "queueId": str(queue_id),
                    "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "4", "subscription": "*",
                    "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0",
                }  # fmt: skip
                header, body = self._client.request(RequestCode.PULL_MESSAGE, place)
                if header.code != 0:
                    break
                yield from [view.physical_offset for view in record_views(body)]
                offset = int(str(header.ext["nextBeginOffset"]))


def _fields(topic: str, text: bytes, flag: int) -> dict[str, Value]:
    return {
        "a": OWN[Names.PRODUCER_GROUP], "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": str(flag),
        "g": str(_BORN_MS), "h": "0", "i": text.decode(), "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def _values(rule: PropertyRule, world: World) -> tuple[str, ...]:
    """Return values that name what others have, as far as the property names something."""
    handle, place = str(world.popped.handle), world.popped.record.offset_message_id
    return {
        "topic": tuple(existing for existing, _ in hidden_names(Names.TOPIC)),
        "group": ("hidden-group", "hidden-producers", "CID_RMQ_SYS_TRANS"),
        "client": (CLIENT,),
        "message": (UNIQUE_ID, DELAYED_ID, f"{TOPIC}+{DELAYED_ID}", place, handle),
        "": ("1", "true", UNIQUE_ID),
    }[rule.refers_to]


def _company(world: World) -> tuple[dict[str, str], ...]:
    """Return the properties without which others have no effect."""
    return (
        {},
        {"DELAY": "1"},
        {"TIMER_DELIVER_MS": str(world.due_ms), "UNIQ_KEY": DELAYED_ID},
        {"TRAN_MSG": "true", "UNIQ_KEY": HALF_ID},
        {"RETRY_TOPIC": TOPIC, "ORIGIN_MESSAGE_ID": UNIQUE_ID},
        {"MSG_TYPE": "reply", "REPLY_TO_CLIENT": CLIENT, "CORRELATION_ID": "1", "CLUSTER": "DefaultCluster"},
    )
