"""A scripted broker that serves POP."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.pop import BatchAckBody, ChangeInvisibleTimeResult, NotificationResult, PopMessageResult
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import BlockCheck, encode_put_block
from reput_protocol.wire.header import Header, HeaderType
from support.fakes import Answer, FakeBroker
from support.stored_blocks import patch_block

POP, ACK, BATCH_ACK = RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE
CHANGE, NOTIFICATION = RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION
SEND_BACK, RESEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
POP_TIME: Final = 1_000_000


def number(header: Header, name: str) -> int:
    return int(str(header.ext[name]))


class Pops:
    """A broker with one queue, of which each message is popped once; records the requests that settle messages."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.waiting: list[bytes] = []
        self.popped = 0
        self.settled: list[tuple[int, Any]] = []
        self.answers: dict[int, list[Answer]] = {}
        self.free = threading.Event()
        """Not set: changes of times are not answered yet."""
        self.free.set()
        self.changing = 0
        broker.behave(POP, self.pop)
        broker.behave(NOTIFICATION, self.notify)
        for code in (ACK, BATCH_ACK, SEND_BACK, RESEND, CHANGE):
            broker.behave(code, lambda header, body, code=code: self.settle(code, header, body))  # type: ignore[misc]

    def pop(self, header: Header, body: memoryview) -> Answer:
        count, invisible_ms = number(header, "maxMsgNums"), number(header, "invisibleTime")
        bodies, self.waiting = self.waiting[:count], self.waiting[count:]
        result = PopMessageResult(POP_TIME, invisible_ms, 3)
        if not bodies:
            return Answer(ResponseCode.POLLING_TIMEOUT, result.to_ext(HeaderType.MSGPACK))
        block = bytearray(encode_put_block([Message("t", each) for each in bodies], "t", 0, 0))
        patch_block(
            block, BlockCheck(len(bodies)), first_queue_offset=self.popped, first_physical_offset=500,
            store_timestamp_ms=0, born_host=bytes(8), store_host=bytes(8),
        )  # fmt: skip
        result.start_offset_info = f"0 0 {self.popped}"
        self.popped += len(bodies)
        return Answer(ext=result.to_ext(HeaderType.MSGPACK), body=bytes(block))

    def notify(self, header: Header, body: memoryview) -> Answer:
        # The fake answers one request of a connection after the other.
        deadline = time.monotonic() + min(0.05, number(header, "pollTime") / 1000)
        while not self.waiting and time.monotonic() < deadline:
            time.sleep(0.005)
        return Answer(ext=NotificationResult(bool(self.waiting)).to_ext(HeaderType.MSGPACK))

    def settle(self, code: int, header: Header, body: memoryview) -> Answer:
        if code == CHANGE:
            self.changing += 1
            assert self.free.wait(10.0)
        planned = self.answers.get(code)
        answer = planned.pop(0) if planned else Answer()
        if answer.code == ResponseCode.SUCCESS:
            self.settled.append((code, dict(header.ext) or BatchAckBody.from_json(body)))
            if code == CHANGE:
                result = ChangeInvisibleTimeResult(POP_TIME + len(self.settled), number(header, "invisibleTime"), 3)
                return Answer(ext=result.to_ext(HeaderType.MSGPACK))
        return answer

    def codes(self) -> list[int]:
        return [code for code, _ in self.settled]
