"""A receiver of spans, by OpenTelemetry's protocol over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.waiting import wait_until


@dataclass
class Receiver:
    """What was received; `status` is what it answers."""

    url: str = ""
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, str]] = field(default_factory=list)

    def wait(self, count: int = 1, name: str = "") -> list[Span]:
        """Wait for spans whose name begins with `name`, and return them in the order of their ends."""
        wait_until(lambda: len(self._named(name)) >= count, what=lambda: f"not {count} spans {name!r}: {self.spans}")
        found = self._named(name)
        assert len(found) == count
        return sorted(found, key=lambda span: span.end_time_unix_nano)

    def _named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name.startswith(name)]


@contextmanager
def receiving_spans() -> Iterator[Receiver]:
    """Run a receiver while the block runs."""
    received = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if received.status == 200:
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    received.resources.append(attributes(part.resource))
                    received.spans += [span for scope in part.scope_spans for span in scope.spans]
            self.send_response(received.status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        received.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


def attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of a span or resource."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in of.attributes}
