"""Spans of calls, by W3C trace contexts (docs/tracing.md). The process that runs the proxy exports them.

The span of a call is a child of its client's, whose context is in the call's metadata (`traceparent`), or in the first
message that is sent. It is the parent of the broker's for the messages that have no context of their own.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from reput_protocol.proxy_process import ProxySpan
from reput_proxy import messaging_pb2 as pb
from reput_proxy.rejections import Code, code_name

_TRACE_PARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_TRACE_STATE_MAX: Final = 512
_SAMPLED: Final = 1
_NAME_BYTES_MAX: Final = 255
"""Of a name as JSON. One that is valid is shorter: only of others is something cut."""
_GOOD: Final = frozenset({Code.OK, Code.MESSAGE_NOT_FOUND})
"""Of a receive without messages the second: it has waited in vain."""
_NO_RESOURCE: Final = pb.Resource()


def trace_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the trace context in the metadata of a call; empty if there is none, or not a valid one."""
    parent = metadata.get("traceparent")
    if parent is None or _TRACE_PARENT.fullmatch(parent) is None:
        return {}
    found = {"traceparent": parent}
    state = metadata.get("tracestate", "")
    if state and len(state) <= _TRACE_STATE_MAX and state.isascii() and state.isprintable():
        found["tracestate"] = state
    return found


class CallSpan:
    """The span of a call that is under way.

    Attributes:
        trace: the context of this span, which the call's messages get.
    """

    __slots__ = ("_export", "_span", "trace")

    def __init__(
        self, export: Callable[[ProxySpan], None], name: str, trace_id: str, parent_id: str, state: str | None
    ) -> None:
        self._export = export
        span_id = f"{random.getrandbits(64) or 1:016x}"
        self._span = ProxySpan(name, trace_id, span_id, parent_id, time.time_ns(), 0, {})
        self.trace = {"traceparent": f"00-{trace_id}-{span_id}-01"}
        if state is not None:
            self.trace["tracestate"] = state

    def end(self, request: Any, code: int | None) -> None:
        """End the span with the code of the response; None: the client has gone."""
        error = "cancelled" if code is None else None if code in _GOOD else code_name(code)
        attributes = _attributes(self._span.name, request)
        self._export(replace(self._span, ended_at_ns=time.time_ns(), attributes=attributes, error=error))


@dataclass(eq=False, repr=False)
class Spans:
    """Makes the spans of a proxy.

    Args:
        export: is called with each span that has ended, and does not wait.
        sample_ratio: the share of calls without a context that begin a trace, 0 to 1.
    """

    _export: Callable[[ProxySpan], None]
    _sample_ratio: float

    def begin(self, name: str, request: Any, trace: Mapping[str, str]) -> CallSpan | None:
        """Return the span of a call with this context; None if its client does not want one.

        Args:
            name: `SERVICE/METHOD`.
        """
        parent = trace.get("traceparent") or _sent_context(request)
        match = None if parent is None else _TRACE_PARENT.fullmatch(parent)
        if match is None:
            if random.random() >= self._sample_ratio:
                return None
            return CallSpan(self._export, name, f"{random.getrandbits(128) or 1:032x}", "", None)
        trace_id, parent_id, flags = match.groups()
        if not (int(flags, 16) & _SAMPLED and int(trace_id, 16) and int(parent_id, 16)):
            return None
        return CallSpan(self._export, name, trace_id, parent_id, trace.get("tracestate"))


def _sent_context(request: Any) -> str | None:
    """Return the context in the first message of a send."""
    if not isinstance(request, pb.SendMessageRequest) or not request.messages:
        return None
    found: str | None = request.messages[0].user_properties.get("traceparent")
    return found


def _resource(of: Any, name: str) -> str:
    """Return the name of a topic or group; empty without one."""
    found: Any = getattr(of, name, _NO_RESOURCE)
    return str(found.name)


def _cut(name: str) -> str:
    """Return as much of a name as is allowed: a client may send any text, with up to 6 bytes of JSON a character."""
    cut = name[:_NAME_BYTES_MAX]
    while len(msgspec.json.encode(cut)) - len('""') > _NAME_BYTES_MAX:
        cut = cut[: len(cut) * 7 // 8]
    return cut


def _attributes(name: str, request: Any) -> dict[str, str | int]:
    """Return what the conventions for RPC and messaging name of a call."""
    service, _, method = name.partition("/")
    found: dict[str, str | int] = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
    found["messaging.system"] = "rocketmq"
    if isinstance(request, pb.SendMessageRequest):
        found["messaging.batch.message_count"] = len(request.messages)
        topic = request.messages[0].topic.name if request.messages else ""
    else:
        topic = _resource(getattr(request, "message_queue", request), "topic")
    group = _resource(request, "group")
    if topic:
        found["messaging.destination.name"] = _cut(topic)
    if group:
        found["messaging.consumer.group.name"] = _cut(group)
    return found
