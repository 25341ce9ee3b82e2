"""OpenTelemetry for producers and consumers (docs/tracing.md): the extra `otel`, off until `instrument` is called.

Names follow OpenTelemetry's semantic conventions for messaging. A producer's span ends with the outcome of its call;
its context travels in message properties (`traceparent`, `tracestate`). A consumer's span covers its handler and links
to that context.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from reput_client.received import ReceivedMessage
from reput_client.transport.client import Client

try:
    from opentelemetry import metrics, trace

    from reput_client.otel.tracing import Tracing
except ImportError as error:
    raise ImportError(
        "OpenTelemetry is not installed; install the extra otel of reput-client, or opentelemetry-sdk"
    ) from error


def instrument(
    *,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
    same_trace: bool = False,
) -> None:
    """Record spans and metrics of all producers and consumers of this process, from their next call on.

    Args:
        tracer_provider, meter_provider: the global ones if None; without an SDK nothing is recorded or injected.
        same_trace: make the span of a consumer a child of the producer's, in its trace. By default it begins a trace,
            or belongs to the current span, and links to the producer's.
    """
    Client._tracing = Tracing(tracer_provider, meter_provider, same_trace=same_trace)


def uninstrument() -> None:
    """Record nothing more."""
    Client._tracing = None


def processing(message: ReceivedMessage, group: str) -> AbstractContextManager[None]:
    """Return a context manager with a span for the handling of a message; for programs that do not use `run`.

    async for message in consumer:
        with processing(message, consumer.group):
            ...
    """
    return nullcontext() if Client._tracing is None else Client._tracing.processing(message, group)
