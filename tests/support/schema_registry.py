"""A schema registry in memory, with those calls of Confluent's HTTP protocol that serializers make.

`python tests/support/schema_registry.py` runs one until its standard input ends, and prints its URL.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class FakeRegistry:
    """The schemas, and how requests are handled.

    Attributes:
        url: of the server.
        requests: method and path of each request.
        failure: status and body of every response, if it is not None.
        incompatible: subjects that accept no further schema.
        authorization: the header that is required, if it is not None.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[str] = []
        self.failure: tuple[int, bytes] | None = None
        self.incompatible: set[str] = set()
        self.authorization: str | None = None
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def add(self, subject: str, text: str, kind: str = "AVRO", references: Any = ()) -> int:
        """Add a schema to a subject and return its id."""
        schema = {"schema": text, "schemaType": kind, "references": list(references)}
        with self._lock:
            if schema not in self._schemas:
                self._schemas.append(schema)
            schema_id = self._schemas.index(schema) + 1
            versions = self._subjects.setdefault(subject, [])
            if schema_id not in versions:
                versions.append(schema_id)
        return schema_id

    def answer(self, method: str, path: str, authorization: str | None, body: bytes) -> tuple[int, Any]:
        self.requests.append(f"{method} {path}")
        if self.failure is not None:
            return self.failure
        if self.authorization not in (None, authorization):
            return error(401, 401, "Unauthorized")
        match method, [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case "GET", ["schemas", "ids", number]:
                if not 0 < int(number) <= len(self._schemas):
                    return error(404, 40403, "Schema not found")
                return 200, self._schemas[int(number) - 1]
            case "GET", ["subjects", subject, "versions", version]:
                return self._version(subject, version)
            case "POST", ["subjects", subject]:
                return self._look_up(subject, posted(body))
            case "POST", ["subjects", subject, "versions"]:
                if subject in self.incompatible:
                    return error(409, 409, "Schema being registered is incompatible with an earlier schema")
                wanted = posted(body)
                return 200, {"id": self.add(subject, wanted["schema"], wanted["schemaType"], wanted["references"])}
        return 404, b"<html>no such page</html>"

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self._subjects.get(subject)
        if versions is None:
            return error(404, 40401, f"Subject '{subject}' not found.")
        number = len(versions) if version == "latest" else int(version)
        if not 0 < number <= len(versions):
            return error(404, 40402, f"Version {version} not found.")
        schema_id = versions[number - 1]
        return 200, {**self._schemas[schema_id - 1], "subject": subject, "version": number, "id": schema_id}

    def _look_up(self, subject: str, wanted: dict[str, Any]) -> tuple[int, Any]:
        for number, schema_id in enumerate(self._subjects.get(subject, ()), 1):
            if same(self._schemas[schema_id - 1], wanted):
                return self._version(subject, str(number))
        return error(404, 40403, "Schema not found")


def posted(body: bytes) -> dict[str, Any]:
    found = json.loads(body)
    return {
        "schema": found["schema"],
        "schemaType": found.get("schemaType") or "AVRO",
        "references": found.get("references") or [],
    }


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Compare schemas; a registry ignores white space in JSON."""
    if one["schemaType"] == "PROTOBUF":
        return one == other
    texts = [json.loads(each["schema"]) for each in (one, other)]
    return one["schemaType"] == other["schemaType"] and bool(texts[0] == texts[1])


def error(status: int, code: int, message: str) -> tuple[int, Any]:
    return status, {"error_code": code, "message": message}


@contextmanager
def schema_registry(context: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    """Run a registry on a free port of this machine; with a context, by TLS."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, found = registry.answer(self.command, self.path, self.headers.get("Authorization"), body)
            data = found if isinstance(found, bytes) else json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore clients that leave, as for a certificate that they do not trust."""

    server = Server(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    registry.url = f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    with schema_registry() as running:
        print(running.url, flush=True)
        sys.stdin.read()
