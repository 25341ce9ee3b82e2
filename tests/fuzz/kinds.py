"""The kinds of input that are tried, and how much of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from fuzz.client_frames import fuzz_requests
from fuzz.client_requests import Form
from fuzz.grpc_service import fuzz_grpc
from fuzz.http_port import fuzz_http
from fuzz.message_port import fuzz_frames
from fuzz.outcome import Outcome
from reput_protocol.wire.header import HeaderType


class Tried(NamedTuple):
    """One kind: what tries it, its share of the inputs of a long run, and how many a short run has."""

    kind: Callable[[int, int], Outcome]
    share: float
    short: int


KINDS = {
    "http": Tried(fuzz_http, 1.0, 3_000),
    "grpc": Tried(fuzz_grpc, 1.0, 1_000),
    "frames": Tried(fuzz_frames, 0.1, 1_000),
    "json-of-clients": Tried(partial(fuzz_requests, HeaderType.JSON, Form.NONE), 1.0, 400),
    "rocketmq-of-clients": Tried(partial(fuzz_requests, HeaderType.BINARY, Form.NONE), 1.0, 400),
    "msgpack-of-clients": Tried(partial(fuzz_requests, HeaderType.MSGPACK, Form.NONE), 1.0, 400),
    "json-signed": Tried(partial(fuzz_requests, HeaderType.JSON, Form.ROCKETMQ), 0.2, 150),
    "rocketmq-signed": Tried(partial(fuzz_requests, HeaderType.BINARY, Form.ROCKETMQ), 0.2, 150),
    "msgpack-signed": Tried(partial(fuzz_requests, HeaderType.MSGPACK, Form.ROCKETMQ), 0.2, 150),
    "json-signed-in-reputs-form": Tried(partial(fuzz_requests, HeaderType.JSON, Form.REPUT), 0.2, 150),
    "msgpack-signed-in-reputs-form": Tried(partial(fuzz_requests, HeaderType.MSGPACK, Form.REPUT), 0.2, 150),
}
