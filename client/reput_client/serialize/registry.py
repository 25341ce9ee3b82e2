"""A client of schema registries that speak Confluent's HTTP protocol. Synchronous, without open connections."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

from reput_client.credentials import Credentials
from reput_client.errors import RegistryRefused, RegistryUnavailable, SchemaNotFound
from reput_client.tls import TLS

_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_SCHEMAS_MAX: Final = 1000
"""Schemas of a cache; the least recently used one is dropped."""
_RESPONSE_BYTES_MAX: Final = 16 << 20
_NOT_FOUND: Final = (40401, 40402, 40403)
"""The registry's codes for an unknown subject, version and schema; a 404 without one is not from a registry."""
_BUSY: Final = 429


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema that another one uses: its name there, and its subject and version in the registry."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as a registry keeps it. `kind` is `AVRO`, `PROTOBUF` or `JSON`."""

    kind: str
    text: str
    references: tuple[SchemaReference, ...] = ()

    def as_request(self) -> dict[str, Any]:
        """Return the body of a request with this schema."""
        body: dict[str, Any] = {"schema": self.text}
        if self.kind != "AVRO":  # the default, which old registries have no name for
            body["schemaType"] = self.kind
        if self.references:
            body["references"] = [
                {"name": each.name, "subject": each.subject, "version": each.version}
                for each in self.references
            ]
        return body


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema with its id, and its version within the subject that was asked."""

    schema_id: int
    schema: Schema
    version: int


class SchemaRegistry:
    """A schema registry with Confluent's HTTP protocol: Confluent's own, Karapace, Apicurio's `/apis/ccompat/v7`.

        registry = SchemaRegistry("https://registry:8081", credentials=Credentials("shop", secret))
        orders = Avro("order.avsc", registry=registry, subject="orders-value")

    Its methods block the calling thread for up to `timeout_s`. Schemas are cached by id, the last 1,000 that were used.
    May be shared by serializers, tasks and threads, and pickled.

    Args:
        url: of the registry, `http:` or `https:`.
        credentials: sent as HTTP basic authentication; with `https:` only, unless the registry is on this machine.
        tls: trusted authorities and client certificate for `https:`; None: the system's authorities.
        timeout_s: for connecting, and for each wait for bytes.

    Raises:
        ValueError: the URL is invalid, or credentials would be sent unencrypted to another machine.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: Credentials | None = None,
        tls: TLS | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not the URL of a schema registry; write http://host:8081")
        if parts.username is not None or parts.password is not None:
            raise ValueError("the URL of a schema registry has no user; give credentials=")
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if credentials is not None and parts.scheme == "http" and not local:
            raise ValueError(f"credentials would be sent unencrypted to {parts.hostname}; use https:")
        self.url = url.rstrip("/")
        self._arguments = (url, credentials, tls, timeout_s)
        self._host = parts.hostname
        self._encrypted = parts.scheme == "https"
        self._port = parts.port or (443 if self._encrypted else 80)
        self._path = parts.path.rstrip("/")
        self._tls = tls or TLS()
        self._timeout_s = timeout_s
        self._headers = {"Accept": f"{_CONTENT_TYPE}, application/json", "Content-Type": _CONTENT_TYPE}
        if credentials is not None:
            pair = f"{credentials.user}:{credentials.secret}".encode()
            self._headers["Authorization"] = f"Basic {b64encode(pair).decode()}"
        self._cached = lru_cache(_SCHEMAS_MAX)(self._by_id)

    def schema(self, schema_id: int, *, serialized: bool = False) -> Schema:
        """Return the schema with an id, from the cache if it is there.

        Args:
            schema_id: as in the frame of a body.
            serialized: of Protobuf, as a `FileDescriptorProto` in Base64, not as source text.

        Raises:
            SchemaNotFound: the registry has no schema with this id.
            RegistryUnavailable: it cannot be reached, or is out of order.
            RegistryRefused: it rejected the request, such as for wrong credentials.
        """
        return self._cached(schema_id, serialized)

    def version(
        self, subject: str, version: int | str = "latest", *, serialized: bool = False
    ) -> RegisteredSchema:
        """Return a version of a subject, by default its latest one; not cached. Raises as `schema`."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}{_format(serialized)}"
        found = self._call("GET", path, f"version {version} of subject {subject!r}")
        return RegisteredSchema(
            self._number(found, "id"), self._parsed(found), self._number(found, "version")
        )

    def look_up(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return id and version of a subject's schema. Raises as `schema`: `SchemaNotFound` if it has not this one."""
        path = f"/subjects/{quote(subject, safe='')}"
        what = f"this schema under subject {subject!r}"
        found = self._call("POST", path, what, schema)
        return RegisteredSchema(self._number(found, "id"), schema, self._number(found, "version"))

    def register(self, subject: str, schema: Schema) -> int:
        """Add a schema to a subject, unless it has it, and return its id.

        Raises:
            RegistryUnavailable: the registry cannot be reached, or is out of order.
            RegistryRefused: the schema is invalid, or incompatible with the subject's (status 409).
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return self._number(self._call("POST", path, f"subject {subject!r}", schema), "id")

    def _by_id(self, schema_id: int, serialized: bool) -> Schema:
        path = f"/schemas/ids/{schema_id}{_format(serialized)}"
        return self._parsed(self._call("GET", path, f"schema {schema_id}"))

    def _number(self, found: Mapping[str, Any], name: str) -> int:
        value = found.get(name)
        if not isinstance(value, int):
            raise RegistryUnavailable(self.url, f"its response has no {name}")
        return value

    def _parsed(self, found: Mapping[str, Any]) -> Schema:
        try:
            references = tuple(
                SchemaReference(str(each["name"]), str(each["subject"]), int(each["version"]))
                for each in found.get("references") or ()
            )
            return Schema(str(found.get("schemaType") or "AVRO"), str(found["schema"]), references)
        except (KeyError, TypeError, ValueError):
            raise RegistryUnavailable(self.url, "its response has no schema") from None

    def _call(self, method: str, path: str, what: str, schema: Schema | None = None) -> Mapping[str, Any]:
        from http.client import HTTPException  # here, since it imports much, and `Json` needs no registry

        body = None if schema is None else json.dumps(schema.as_request()).encode()
        try:
            status, data = self._exchange(method, self._path + path, body)
        except (OSError, HTTPException, ValueError) as error:  # the last of a file for TLS
            raise RegistryUnavailable(self.url, str(error) or type(error).__name__) from error
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if status == 200 and isinstance(found, dict):
            return found
        code, reason = 0, f"status {status}"
        if isinstance(found, dict):
            with_code = found.get("error_code")
            code = with_code if isinstance(with_code, int) else 0
            reason = f"{reason}: {found.get('message')}"
        if status >= 500 or status == _BUSY or 200 <= status < 300:
            raise RegistryUnavailable(self.url, reason if status != 200 else "its response is not JSON")
        if code in _NOT_FOUND:
            raise SchemaNotFound(self.url, what)
        raise RegistryRefused(self.url, what, status, code, reason)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        import socket
        from http.client import HTTPConnection, HTTPException

        connection = HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            if self._encrypted:  # not HTTPSConnection, which knows no other name for the certificate
                context = self._tls.context()
                plain = socket.create_connection((self._host, self._port), self._timeout_s)
                connection.sock = plain
                connection.sock = context.wrap_socket(
                    plain, server_hostname=self._tls.server_name or self._host
                )
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            data = response.read(_RESPONSE_BYTES_MAX + 1)
        finally:
            connection.close()
        if len(data) > _RESPONSE_BYTES_MAX:
            raise HTTPException(f"its response is larger than {_RESPONSE_BYTES_MAX} bytes")
        return response.status, data

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._arguments


def _rebuild(url: str, credentials: Credentials | None, tls: TLS | None, timeout_s: float) -> SchemaRegistry:
    return SchemaRegistry(url, credentials=credentials, tls=tls, timeout_s=timeout_s)


def _format(serialized: bool) -> str:
    return "?format=serialized" if serialized else ""
