"""Spans of the broker, and the thread that exports them by OTLP over HTTP (docs/tracing.md).

The event loop only appends finished spans to a bounded list. The thread makes OpenTelemetry's spans of them; only this
module imports OpenTelemetry.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
from msgspec import Struct

from reput_broker.config.value_types import public_url

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter as OtlpExporter

log = structlog.get_logger(__name__)

SPAN_RESULTS: Final = ("exported", "failed", "dropped")
"""Exported; the receiver did not take them; more than the list holds waited for the receiver."""

_WAITING_MAX: Final = 16_384
_BATCH_MAX: Final = 512
_INTERVAL_S: Final = 1.0
_REPEATED_S: Final = 60.0
_REQUEST_S: Final = 10.0


class TraceContext(NamedTuple):
    """A span of another program, as `traceparent` names it."""

    trace_id: int
    span_id: int


class FinishedSpan(Struct, gc=False):
    """A span of the broker; times in nanoseconds since 1970."""

    name: str
    context: TraceContext
    parent: TraceContext | None
    links: Sequence[TraceContext]
    started_at_ns: int
    ended_at_ns: int
    attributes: dict[str, str | int]
    error: str | None = None
    """Why it failed, as the symbolic response code."""
    stored_at_ns: int | None = None
    """Of a put: when its messages were in the log; then it waited for its ack level."""


class SpanExporter:
    """Exports spans in a thread, from `start` to `close`.

    Attributes:
        counts: spans by one of SPAN_RESULTS.
    """

    def __init__(self, endpoint: str, resource: dict[str, str]) -> None:
        """Spans go to the URL `endpoint`; `resource` describes this broker.

        Raises:
            ModuleNotFoundError: OpenTelemetry's exporter is not installed.
        """
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        # What it logs is logged here, at most once a minute. A program's own handlers still get it.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        self.counts = dict.fromkeys(SPAN_RESULTS, 0)
        self._endpoint = endpoint
        self._to_otlp = _Converter(resource)
        self._otlp: OtlpExporter = OTLPSpanExporter(endpoint, timeout=_REQUEST_S)
        self._waiting: deque[FinishedSpan] = deque()
        self._wanted = threading.Event()
        self._is_closing = False
        self._complained_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="reput-spans", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, span: FinishedSpan) -> None:
        """Queue a span; drop it if too many are queued. Never waits."""
        waiting = self._waiting
        if len(waiting) >= _WAITING_MAX:
            self.counts["dropped"] += 1
            return
        waiting.append(span)
        if len(waiting) == _BATCH_MAX:
            self._wanted.set()

    def close(self, timeout_s: float) -> None:
        """Export what is queued, for at most `timeout_s`, and end the thread. Blocks."""
        self._is_closing = True
        self._wanted.set()
        self._thread.join(timeout_s)
        self._otlp.shutdown()  # also ends its wait for another attempt

    def _run(self) -> None:
        while not self._is_closing:
            self._wanted.wait(_INTERVAL_S)
            self._wanted.clear()
            while self._waiting:
                self._export([self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH_MAX))])

    def _export(self, spans: list[FinishedSpan]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            is_exported = self._otlp.export(self._to_otlp(spans)) is SpanExportResult.SUCCESS
        except Exception as error:  # the thread must not end
            log.error("spans_not_exported", hint="a defect of the broker", exc_info=error)
            is_exported = False
        self.counts["exported" if is_exported else "failed"] += len(spans)
        if is_exported:
            self._complained_at = None
        elif self._complained_at is None or time.monotonic() - self._complained_at >= _REPEATED_S:
            self._complained_at = time.monotonic()
            log.warning(
                "spans_not_exported",
                endpoint=public_url(self._endpoint),
                failed=self.counts["failed"],
                dropped=self.counts["dropped"],
                hint="check tracing.endpoint and its receiver; messages are not affected",
            )


class _Converter:
    """Makes OpenTelemetry's spans."""

    def __init__(self, resource: dict[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._resource = Resource.create(resource)
        self._scope = InstrumentationScope("reput_broker", resource["service.version"])

    def __call__(self, spans: Sequence[FinishedSpan]) -> list[ReadableSpan]:
        return [self._converted(span) for span in spans]

    def _converted(self, span: FinishedSpan) -> ReadableSpan:
        from opentelemetry.sdk.trace import Event, ReadableSpan
        from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

        sampled = TraceFlags(TraceFlags.SAMPLED)

        def context(of: TraceContext, *, is_remote: bool = True) -> SpanContext:
            return SpanContext(of.trace_id, of.span_id, is_remote, sampled)

        events = () if span.stored_at_ns is None else (Event("stored", timestamp=span.stored_at_ns),)
        failed = {} if span.error is None else {"error.type": span.error}
        return ReadableSpan(
            span.name,
            context(span.context, is_remote=False),
            None if span.parent is None else context(span.parent),
            self._resource,
            {**span.attributes, **failed},
            events,
            [Link(context(link)) for link in span.links],
            SpanKind.SERVER,
            status=Status() if span.error is None else Status(StatusCode.ERROR, span.error),
            start_time=span.started_at_ns,
            end_time=span.ended_at_ns,
            instrumentation_scope=self._scope,
        )
