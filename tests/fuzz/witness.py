"""A client that behaves, next to those that do not: all its messages must be there."""

from __future__ import annotations

import json
import secrets
from itertools import count
from typing import Final

import trio
import trio.lowlevel

from fuzz.outcome import Outcome
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.names import is_system_group
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType, Value
from reput_protocol.wire.signature import Credentials, signed_by
from support.raw_client import in_letters

_PAUSE_S: Final = 0.02
_BODY_BYTES: Final = 200
_REFUSALS_MAX: Final = 20
_GROUP: Final = "witness"
_WITHIN_S: Final = 600.0
"""However busy the machine is."""
_CREATED: Final = (
    (
        "subscriptionGroupTable",
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        "groupName",
    ),
    ("topicConfigTable", RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.DELETE_TOPIC_IN_BROKER, "topic"),
)


class Witness:
    """Sends numbered messages to a topic of its own and pulls each, on one connection.

    Others may send the administrator's requests as well: what stops all sends is undone, and the topics and groups that
    they have created are deleted on request.
    """

    def __init__(self, address: str, outcome: Outcome, credentials: Credentials | None) -> None:
        self._address = address
        self._outcome = outcome
        self._credentials = credentials
        self._topic = f"witness-{secrets.token_hex(8)}"
        self._opaques = count(1)
        self._reader = FrameReader()
        self._ends = trio.Event()
        self._ended = trio.Event()
        self._cleaned = trio.Event()
        self._cleaned.set()
        self.received = 0
        """Messages that came as they were sent."""

    async def run(self) -> None:
        """Send and pull until `end`; what is wrong is a violation."""
        host, _, port = self._address.rpartition(":")
        try:
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                self._stream = stream
                await self._restore()
                while not self._ends.is_set() or not self.received:
                    with trio.fail_after(_WITHIN_S):
                        await self._exchange_one()
                        if not self._cleaned.is_set():
                            await self._delete_created()
                            self._cleaned.set()
                    await trio.sleep(_PAUSE_S)
        except (trio.BrokenResourceError, trio.TooSlowError, EOFError, AssertionError) as error:
            self._outcome.violations.append(f"another client: message {self.received}: {error!r}")
        self._ended.set()
        self._cleaned.set()

    async def clean(self) -> None:
        """Wait until the topics and groups of others are deleted, with all offsets."""
        if not self._ended.is_set():
            self._cleaned = trio.Event()
            await self._cleaned.wait()

    async def end(self) -> None:
        """Wait until the last message is pulled."""
        self._ends.set()
        await self._ended.wait()

    async def _exchange_one(self) -> None:
        body = b"%d " % self.received + secrets.token_bytes(_BODY_BYTES)
        for _ in range(_REFUSALS_MAX):
            header, _ = await self._ask(RequestCode.SEND_MESSAGE_V2, in_letters(self._topic), body)
            if header.code == ResponseCode.SUCCESS:
                break
            self._outcome.answers["sends refused to another client"] += 1
            await self._restore()
        assert header.code == ResponseCode.SUCCESS, header
        assert header.ext["queueOffset"] == str(self.received), header
        pull = {"consumerGroup": _GROUP, "topic": self._topic, "queueId": "0", "maxMsgNums": "1", "sysFlag": "4"}
        while True:
            header, records = await self._ask(
                RequestCode.PULL_MESSAGE,
                {**pull, "queueOffset": str(self.received), "commitOffset": "0", "subscription": "*"},
            )
            if header.code not in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
                break
            await trio.lowlevel.checkpoint()
        assert header.code == ResponseCode.SUCCESS, header
        assert body in records, "another body"
        self.received += 1

    async def _delete_created(self) -> None:
        """Delete until nothing is left: what is delivered late may create a topic late."""
        _, body = await self._ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {})
        own = {self._topic, _GROUP, *json.loads(body)["topicList"]}
        for table, listing, deletion, name_field in _CREATED:
            while True:
                _, body = await self._ask(listing, {})
                names = [name for name in json.loads(body)[table] if name not in own and not is_system_group(name)]
                if not names:
                    break
                for name in names:
                    header, _ = await self._ask(deletion, {name_field: name, "cleanOffset": "true"})
                    assert header.code == ResponseCode.SUCCESS, (name, header)
                self._outcome.answers[f"deleted from {table}"] += len(names)

    async def _restore(self) -> None:
        queues: dict[str, Value] = {"readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        more: dict[str, Value] = {"topic": self._topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        await self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**queues, **more})
        await self._ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
        await self._ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=6\n")
        await self._ask(RequestCode.SET_INTAKE, {"intake": "open"})

    async def _ask(self, code: int, ext: dict[str, Value], body: bytes = b"") -> tuple[Header, bytes]:
        if self._credentials is not None:
            ext = signed_by(self._credentials, ext, body, version=0)
        opaque = next(self._opaques)
        await self._stream.send_all(encode_frame(Header(code, opaque, ext=ext), HeaderType.JSON, body))
        async for data in self._stream:
            for frame in self._reader.receive_data(bytes(data)):
                header = decode_header(frame.header_type, frame.header)
                if header.is_response:
                    assert header.opaque == opaque, header
                    return header, bytes(frame.body)
        raise EOFError("the broker has closed its connection")
