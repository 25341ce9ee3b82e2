"""Changed requests of real clients at the message port of a broker in this process, over real sockets."""

from __future__ import annotations

import time
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import trio

from fuzz.captured import USER
from fuzz.client_requests import Form, Requests, SignedRequests
from fuzz.mutations import in_parts
from fuzz.outcome import Memory, Outcome, defects_in_the_log, private_b
from fuzz.witness import Witness
from reput_broker import Broker, BrokerConfig
from reput_broker.access.model import User
from reput_broker.access.user_file import UserFile
from reput_broker.server.connection_limits import Penalties
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.users import SignatureChallenge
from reput_protocol.errors import ProtocolError
from reput_protocol.wire.frames import Frame, FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import Header, HeaderType, value_text
from reput_protocol.wire.signature import ACCESS_KEY, REPUT_SIGNATURE, SIGNATURE, RequestSigner

_AT_ONCE: Final = 32
_A_CONNECTION: Final = 64
_SPLIT_SHARE: Final = 0.1
"""Of the connections: those whose bytes come in several pieces."""
_BATCH: Final = 20_000
_SHOWN_EVERY: Final = 100_000
_ENDS_WITHIN_S: Final = 600.0
"""However busy the machine is."""
_OF_STRANGERS: Final = "before the first valid signature"
"""In the refusal of a large frame whose rest has not come."""
_KNOWN: Final = frozenset(map(int, ResponseCode))
_OF_SERVERS: Final = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    }
)
"""Requests that a broker sends to clients."""
_MAY_WAIT: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.END_TRANSACTION,  # whose outcome is not known
    }
)
"""Requests whose answer may come after the client has gone, or never."""


def fuzz_requests(header_type: HeaderType, form: Form, seed: int, cases: int) -> Outcome:
    """Send changed requests of clients in one type of header.

    Each connection ends, each answer is a response with a known code to a request of this connection, and each request
    that wants one has its answer. No defect is logged, another client's messages are all there, and once the topics and
    groups that the requests have created are deleted, memory is what it was.

    Args:
        form: of the signatures. With one, access control is on: a request whose signature is not that of its content is
            refused, and in Reput's form one that comes again.
    """
    outcome = Outcome()
    with (
        defects_in_the_log(outcome),
        TemporaryDirectory(prefix="reput-fuzz-") as directory,
        # The broker looks at every request, though most signatures are wrong.
        patch("reput_broker.server.connection.UNAUTHENTICATED_MAX", 1 << 30),
        patch.object(Penalties, "pause_s", lambda *_: 0.0),
    ):
        trio.run(_Fuzzer(header_type, form, Random(seed), cases, outcome).run, Path(directory))
    return outcome


class _Asked(NamedTuple):
    """A request as the broker reads it; `is_valid`: it may pass access control."""

    header: Header
    is_valid: bool


class _Fuzzer:
    def __init__(self, header_type: HeaderType, form: Form, rng: Random, cases: int, outcome: Outcome) -> None:
        self._header_type = header_type
        self._form = form
        self._signed = form is not Form.NONE
        self._rng = rng
        self._cases = cases
        self._outcome = outcome
        self._requests = Requests(header_type, rng, USER if form is Form.ROCKETMQ else None)
        self._signatures = {
            (frame.header.ext["AccessKey"], content)
            for frame in self._requests.originals
            if SIGNATURE in frame.header.ext
            for content in _contents(frame.header, frame.body)
        }

    async def run(self, directory: Path) -> None:
        outcome = self._outcome
        started_at = time.monotonic()
        async with Broker(_config(directory, signed=self._signed)) as broker:
            memory: Memory | None = None
            async with trio.open_nursery() as nursery:
                witness = Witness(broker.address, outcome, USER if self._signed else None)
                nursery.start_soon(witness.run)
                while outcome.cases < self._cases and not outcome.enough:
                    before = outcome.cases
                    left = iter(range(min(_BATCH, self._cases - outcome.cases)))
                    async with trio.open_nursery() as clients:
                        for _ in range(_AT_ONCE):
                            clients.start_soon(self._connections, broker.address, left)
                    await witness.clean()
                    if memory is None and outcome.cases >= self._cases // 10:
                        memory = Memory.now()
                    if outcome.cases // _SHOWN_EVERY > before // _SHOWN_EVERY:
                        self._show(time.monotonic() - started_at)
                await witness.end()
                if memory is not None:
                    outcome.note_memory(memory)
            outcome.answers["messages of another client"] = witness.received

    async def _connections(self, address: str, left: Iterator[int]) -> None:
        host, _, port = address.rpartition(":")
        while not self._outcome.enough:
            stream = await trio.open_tcp_stream(host, int(port))
            async with stream:
                if not await self._connection(stream, left):
                    return

    async def _connection(self, stream: trio.SocketStream, left: Iterator[int]) -> bool:
        """Send requests, and look at the answers; return whether there were any left to send."""
        signed = await _challenged(stream) if self._form is Form.REPUT else None
        parts: list[bytes] = []
        for opaque in range(1, 1 + self._rng.randint(1, _A_CONNECTION)):
            if next(left, None) is None:
                break
            data, can_go_on = self._requests.next(opaque, signed)
            parts.append(data)
            if not can_go_on:
                break
        if not parts:
            return False
        self._outcome.cases += len(parts)
        data = b"".join(parts)
        sent = in_parts(self._rng, data) if self._rng.random() < _SPLIT_SHARE else [data]
        asked, is_broken = self._as_read(data, signed)
        awaited, answers = _must_come(asked), list[Header]()
        try:
            with trio.fail_after(_ENDS_WITHIN_S):
                fault = await _exchange(stream, sent, awaited, answers)
        except trio.TooSlowError:
            left_over = sorted({header.code for header, _ in asked if header.opaque in awaited})
            fault = f"open after {_ENDS_WITHIN_S:g} s; no answers to requests {left_over}, to {len(answers)} others"
        if fault:
            self._violation(data, fault)
        else:
            self._judge(data, asked, is_broken, answers)
        return True

    def _judge(self, data: bytes, asked: list[_Asked], is_broken: bool, answers: list[Header]) -> None:
        counts = self._outcome.answers
        answered: Counter[int] = Counter()
        by_opaque: dict[int, list[_Asked]] = {}  # damage can make two requests have one number
        for each in asked:
            by_opaque.setdefault(each.header.opaque, []).append(each)
        for answer in answers:
            if not answer.is_response:
                if answer.code not in _OF_SERVERS:
                    self._violation(data, f"the broker sends the request {answer.code}")
                counts["requests of the broker"] += 1
                continue
            if answer.code not in _KNOWN:
                self._violation(data, f"answer with the unknown code {answer.code}")
            counts[_name(answer.code)] += 1
            is_refused = is_broken or (self._signed and _OF_STRANGERS in (answer.remark or ""))
            if is_refused and answer.opaque == 0 and "connection is closed" in (answer.remark or ""):
                continue
            requests = by_opaque.get(answer.opaque)
            if requests is None:
                self._violation(data, f"answer to no request: {answer}")
                continue
            answered[answer.opaque] += 1
            if not any(each.is_valid for each in requests) and not _is_refusal(answer):
                self._violation(data, f"access control lets {requests[0].header} pass: {answer}")
        wanted = Counter(
            each.header.opaque for each in asked if not each.header.is_response and not each.header.is_oneway
        )
        if answered - wanted:
            self._violation(data, f"answers that no request wants: {answered - wanted}")
        if is_broken:
            counts["connections closed for a broken frame"] += 1
            return
        for opaque in wanted - answered:
            if any(each.header.code in _MAY_WAIT for each in by_opaque[opaque]):
                counts["still waiting"] += 1
            else:
                self._violation(data, f"no answer to {by_opaque[opaque][0].header}")

    def _as_read(self, data: bytes, signed: SignedRequests | None) -> tuple[list[_Asked], bool]:
        """Return the requests in `data`, and whether the connection ends at something that is none."""
        reader, asked = FrameReader(), []
        try:
            for header_type, encoded, body in reader.receive_data(data):
                header = decode_header(header_type, encoded)
                asked.append(_Asked(header, self._may_pass(header, bytes(body), signed)))
        except ProtocolError:
            return asked, True
        return asked, reader.failure is not None

    def _may_pass(self, header: Header, body: bytes, signed: SignedRequests | None) -> bool:
        if not self._signed or header.is_response:
            return True
        if header.code == RequestCode.SIGNATURE_CHALLENGE and ACCESS_KEY not in header.ext:
            return True
        if signed is not None and REPUT_SIGNATURE in header.ext:
            return signed.takes(header, body)
        return self._is_signed(header, body)

    def _is_signed(self, header: Header, body: bytes) -> bool:
        """Whether a client has made this signature for these fields and this body."""
        key = header.ext.get("AccessKey")
        return any((key, content) in self._signatures for content in _contents(header, body))

    def _show(self, took_s: float) -> None:
        kind = f"{self._header_type.name}, {self._form}"
        resident_kib = int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0])
        print(
            f"  {kind}: {self._outcome.cases:,} inputs, {took_s:.0f} s, resident {resident_kib / 1024:.1f} MiB, "
            f"without files {private_b() / (1 << 20):.1f} MiB, {len(self._outcome.violations)} violations",
            flush=True,
        )

    def _violation(self, data: bytes, text: str) -> None:
        if not self._outcome.enough:
            self._outcome.violations.append(f"{text[:700]}; sent: {data.hex()}")


def _contents(header: Header, body: bytes) -> Iterator[tuple[object, bytes]]:
    """The signature of a request with what it covers: all other fields by name, and the body.

    Some clients do not sign a token, and old ones not the mark of a query by unique key.
    """
    old = 1 < header.version <= 399
    for unsigned in ({"Signature"}, {"Signature", "SecurityToken"}):
        left_out = unsigned | {"_UNIQUE_KEY_QUERY"} if old else unsigned
        try:
            values = [
                value_text(value)
                for name, value in sorted(header.ext.items())
                if value is not None and name not in left_out
            ]
        except ValueError:
            return
        yield header.ext.get("Signature"), "".join(values).encode("utf-8", "replace") + body


def _is_refusal(answer: Header) -> bool:
    return answer.code == ResponseCode.NO_PERMISSION and (answer.remark or "").startswith("UNAUTHENTICATED: ")


def _name(code: int) -> str:
    return ResponseCode(code).name if code in _KNOWN else str(code)


def _must_come(asked: list[_Asked]) -> set[int]:
    """The numbers of the requests whose answers come as long as the client waits."""
    return {
        header.opaque
        for header, _ in asked
        if not header.is_response and not header.is_oneway and header.code not in _MAY_WAIT
    }


async def _challenged(stream: trio.SocketStream) -> SignedRequests:
    """Ask for a connection's challenge."""
    await stream.send_all(encode_frame(Header(int(RequestCode.SIGNATURE_CHALLENGE), 1), HeaderType.JSON))
    reader, frames = FrameReader(), list[Frame]()
    while not frames:
        frames = reader.receive_data(bytes(await stream.receive_some()))
    given = SignatureChallenge.from_ext(decode_header(frames[0].header_type, frames[0].header).ext)
    assert given.challenge is not None, "access control is on"
    return SignedRequests(RequestSigner(USER, b64decode(given.challenge), lambda: time.time_ns() // 1_000_000))


async def _exchange(stream: trio.SocketStream, parts: list[bytes], awaited: set[int], answers: list[Header]) -> str:
    """Send, and read to the end, once the awaited answers have come.

    Args:
        awaited: numbers of requests; each is removed when its answer comes.
        answers: gets all of them.

    Returns:
        What is wrong with them as frames.
    """
    reader = FrameReader()
    with suppress(trio.BrokenResourceError):  # the broker need not read on after an error
        for part in parts:
            await stream.send_all(part)
        if not awaited:
            await stream.send_eof()
    try:
        with suppress(trio.BrokenResourceError):
            async for data in stream:
                for frame in reader.receive_data(bytes(data)):
                    header = decode_header(frame.header_type, frame.header)
                    answers.append(header)
                    if awaited:
                        awaited.discard(header.opaque)
                        if not awaited:
                            await stream.send_eof()
        if reader.failure is not None:
            raise reader.failure
    except ProtocolError as error:
        return f"the answer is no frame: {error}"
    return ""


def _config(directory: Path, *, signed: bool) -> BrokerConfig:
    data_dir = directory / "data"
    access: Mapping[str, Any] = {}
    if signed:
        user = User(USER.user, USER.secret, is_admin=True)
        UserFile(data_dir / "access" / "users.json").change(lambda users: users.with_user(user))
        access = {"access": {"enabled": True, "first_signature_timeout": f"{_ENDS_WITHIN_S:g}s"}}
    return BrokerConfig.model_validate(
        {
            "data_dir": data_dir,
            "port": 0,
            "store": {
                "commit_log_file_size": 16 << 20,
                "index_slots": 1000,
                "index_entries": 4000,
                "flush": "async",
                "disk_clean_forcibly_ratio": 1.0,
                "disk_warning_ratio": 1.0,
            },
            "topics": {"auto_create_max": 100},
            "long_polling": {"max_wait": "100ms"},
            **access,
        }
    )
