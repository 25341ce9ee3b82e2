"""An Iceberg REST catalog in this process, with as much of the protocol as the job needs, over a catalog in SQLite."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table

_CODES = {
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    TableAlreadyExistsError: 409,
}


@contextmanager
def rest_catalog(directory: Path) -> Iterator[tuple[str, Catalog]]:
    """Serve a catalog while the block runs; yields its URI and the catalog that it is made of."""
    catalog = load_catalog(
        "served", type="sql", uri=f"sqlite:///{directory / 'served.db'}", warehouse=directory.as_uri()
    )

    class Handler(_Handler):
        served = catalog

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", catalog
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: Catalog

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, *_given: object) -> None:
        pass

    def _answer(self, act: Any) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            code, value = 200, act(self.path.split("?")[0].strip("/").split("/")[1:], body)
        except tuple(_CODES) as error:
            code = _CODES[type(error)]
            value = {"error": {"message": str(error), "type": type(error).__name__, "code": code}}
        data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _get(self, path: list[str], _body: bytes) -> dict[str, Any]:
        match path:
            case ["config"]:
                return {"defaults": {}, "overrides": {}}
            case ["namespaces", namespace]:
                return {"namespace": [namespace], "properties": self.served.load_namespace_properties(namespace)}
            case ["namespaces", namespace, "tables", name]:
                return _described(self.served.load_table((namespace, name)))
        raise NoSuchTableError("/".join(path))

    def _post(self, path: list[str], body: bytes) -> dict[str, Any]:
        match path:
            case ["namespaces"]:
                names = json.loads(body)["namespace"]
                self.served.create_namespace(tuple(names))
                return {"namespace": names, "properties": {}}
            case ["namespaces", namespace, "tables"]:
                wanted = json.loads(body)
                schema = Schema.model_validate(wanted["schema"])
                made = self.served.create_table(
                    (namespace, wanted["name"]), schema, properties=wanted.get("properties") or {}
                )
                return _described(made)
            case ["namespaces", namespace, "tables", name]:
                request = CommitTableRequest.model_validate_json(body)
                table = self.served.load_table((namespace, name))
                self.served.commit_table(table, request.requirements, request.updates)
                return _described(self.served.load_table((namespace, name)))
        raise NoSuchTableError("/".join(path))


def _described(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }
