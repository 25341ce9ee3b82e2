r"""Schema registries that speak Confluent's HTTP protocol, and values whose schema is in one.

The client of a registry is synchronous, and keeps no connection open. Bodies have Confluent's frame:

    00 | schema id, 4 bytes, big endian | Protobuf: message indexes | payload

The message indexes are the path to the message in its file: their count, then each, as zigzag varints. `00` stands for
the file's first message, `[0]`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from struct import Struct
from typing import Any, Final, Generic
from urllib.parse import quote, urlsplit

from reput_client.errors import RegistryRefused, RegistryUnavailable, SchemaNotFound
from reput_client.received import V
from reput_client.security import TLS, Credentials

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
                {"name": each.name, "subject": each.subject, "version": each.version} for each in self.references
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
        self, url: str, *, credentials: Credentials | None = None, tls: TLS | None = None, timeout_s: float = 10.0
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
        self._remade = partial(SchemaRegistry, url, credentials=credentials, tls=tls, timeout_s=timeout_s)
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

    def version(self, subject: str, version: int | str = "latest", *, serialized: bool = False) -> RegisteredSchema:
        """Return a version of a subject, by default its latest one; not cached. Raises as `schema`."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}{_format(serialized)}"
        found = self._call("GET", path, f"version {version} of subject {subject!r}")
        return RegisteredSchema(self._number(found, "id"), self._parsed(found), self._number(found, "version"))

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
                connection.sock = context.wrap_socket(plain, server_hostname=self._tls.server_name or self._host)
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            data = response.read(_RESPONSE_BYTES_MAX + 1)
        finally:
            connection.close()
        if len(data) > _RESPONSE_BYTES_MAX:
            raise HTTPException(f"its response is larger than {_RESPONSE_BYTES_MAX} bytes")
        return response.status, data

    def __reduce__(self) -> tuple[Any, ...]:
        return self._remade, ()


def _format(serialized: bool) -> str:
    return "?format=serialized" if serialized else ""


_HEAD: Final = Struct(">BI")
FRAME_BYTES: Final = _HEAD.size
_INDEXES_MAX: Final = 64
"""Depth to which messages are nested; protoc allows 32."""
_VARINT_BYTES_MAX: Final = 5


class Registered(ABC, Generic[V]):
    """The shared part of `Avro`, `Protobuf` and `Json`: their schema's id, found at the first use.

    Args:
        registry: None: bodies have no frame.
        subject: under which `serialize` finds the schema's id, usually `TOPIC-value`.
        register: whether `serialize` adds the schema to the subject if it is not there.

    Raises:
        ValueError: `subject` or `register` is given without what it needs.
    """

    def __init__(self, registry: SchemaRegistry | None, subject: str | None, register: bool) -> None:
        if registry is None and subject is not None:
            raise ValueError("subject= belongs to registry=, which is not given")
        if register and subject is None:
            raise ValueError("register=True needs subject=, such as 'orders-value'")
        self._registry = registry
        self._subject = subject
        self._register = register
        self._known_id: int | None = None

    @abstractmethod
    def serialize(self, value: V) -> bytes:
        """Return the body of a value."""

    @abstractmethod
    def deserialize(self, body: bytes) -> V:
        """Return the value of a body."""

    def look_up(self) -> None:
        """Ask the registry now for what `serialize` needs, and register the schema if that is wanted; blocks.

        Raises:
            RegistryUnavailable, RegistryRefused, SchemaNotFound: the registry gave no schema.
        """
        if self._registry is not None:
            self._schema_id()

    async def prepare(self, *bodies: bytes) -> None:
        """Ask the registry now, in a worker thread, so that calls of this object block no event loop.

        Without bodies, for what `serialize` needs; else for what `deserialize` needs for these bodies. Does nothing
        without a registry. Malformed bodies and unknown ids are left to `deserialize`.

        Raises:
            RegistryUnavailable, RegistryRefused: the registry gave no schema.
            SchemaNotFound: without bodies: the subject does not have the schema of `serialize`.
        """
        if self._registry is None:
            return
        from anyio import to_thread  # here, because the synchronous API loads no event loop

        if not bodies:
            await to_thread.run_sync(self.look_up)
        for body in bodies:
            try:
                schema_id = schema_id_of(body)
                if not self._knows(schema_id):
                    await to_thread.run_sync(self._learn, schema_id)
            except (SchemaNotFound, ValueError):
                continue

    def _schema_id(self) -> int:
        """Return the id with which `serialize` marks bodies; asks the registry once."""
        if self._known_id is None:
            assert self._registry is not None, "the caller has checked"
            if self._subject is None:
                raise ValueError("the registry finds no schema without subject=, such as 'orders-value'")
            self._known_id = self._find_id(self._registry, self._subject)
        return self._known_id

    def _find_id(self, registry: SchemaRegistry, subject: str) -> int:
        own = self._own_schema()
        if own is None:
            latest = registry.version(subject)
            self._adopt(latest.schema_id)
            return latest.schema_id
        if self._register:
            return registry.register(subject, own)
        return registry.look_up(subject, own).schema_id

    @abstractmethod
    def _own_schema(self) -> Schema | None:
        """Return the program's schema as the registry knows it; None: it has none and uses the subject's latest."""

    def _adopt(self, schema_id: int) -> None:
        """Use a schema of the registry from now on, for want of one of the program."""

    def _knows(self, schema_id: int) -> bool:  # noqa: ARG002
        """Return whether bodies with this schema are deserialized without asking the registry."""
        return True

    def _learn(self, schema_id: int) -> None:
        """Ask the registry for what `deserialize` needs for a schema."""


def frame(schema_id: int, payload: bytes, indexes: bytes = b"") -> bytes:
    """Return the body of a payload; `indexes` are a Protobuf message's, encoded."""
    return _HEAD.pack(0, schema_id) + indexes + payload


def schema_id_of(body: bytes) -> int:
    """Return the schema id of a body, whose payload or message indexes start at `FRAME_BYTES`.

    Raises:
        ValueError: it has no frame.
    """
    if len(body) < FRAME_BYTES or body[0] != 0:
        raise ValueError(f"the body has no schema id: it starts with {body[:FRAME_BYTES].hex(' ') or 'nothing'}")
    schema_id: int = _HEAD.unpack_from(body)[1]
    return schema_id


def encode_indexes(indexes: Sequence[int]) -> bytes:
    """Return the bytes of message indexes."""
    if list(indexes) == [0]:
        return b"\0"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def decode_indexes(body: bytes) -> tuple[list[int], int]:
    """Return a framed body's message indexes and where its payload starts.

    Raises:
        ValueError: they are malformed.
    """
    count, at = _read_varint(body, FRAME_BYTES)
    if not 0 <= count <= _INDEXES_MAX:
        raise ValueError(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _read_varint(body, at)
        if index < 0:
            raise ValueError(f"message index {index}")
        indexes.append(index)
    return indexes or [0], at


def _varint(number: int) -> bytes:
    """Return a number that is not negative as a zigzag varint."""
    rest = number << 1
    encoded = bytearray()
    while rest >= 0x80:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint and where the next byte is."""
    encoded = 0
    for place, byte in enumerate(body[at : at + _VARINT_BYTES_MAX]):
        encoded |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return (encoded >> 1) ^ -(encoded & 1), at + place + 1
    raise ValueError("the message indexes are incomplete")


def needs(library: str, extra: str, missing: ModuleNotFoundError) -> ModuleNotFoundError:
    """Return the error for a library that is not installed, with the extra that installs it."""
    return ModuleNotFoundError(f"{library} is not installed: pip install 'reput-client[{extra}]'", name=missing.name)


def json_text(schema: Any) -> str:
    """Return a schema that is JSON as text."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
