"""Decoders that make values for JSON of bodies: what `reput consume --decode` and the console show.

A form is a text: `json`, `msgpack`, `avro:FILE`, `protobuf:FILE:MESSAGE` or `registry:URL`.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from reput_client.security import Credentials, credentials_of
from reput_client.serialize.registry import FRAME_BYTES, Schema, SchemaRegistry, decode_indexes, schema_id_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pool import DescriptorPool

Decode: TypeAlias = Callable[[bytes], Any]
"""Returns the value of a body, made of what JSON has; raises any exception for a body that is not of its form."""

_USER: Final = "REPUT_REGISTRY_USER"
_SECRET_FILE: Final = "REPUT_REGISTRY_SECRET_FILE"
_GOOGLE: Final = "google/protobuf/"
_CLASSES_MAX: Final = 1000
_JSON_BEGINS: Final = b'[{"'
_MSGPACK_BEGINS: Final = frozenset((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
"""First bytes of maps and arrays. Most other bytes are a MessagePack value, too, whatever the body is."""


def body_decoder(form: str, *, credentials: Credentials | None = None, timeout_s: float = 10.0) -> Decode:
    """Return the decoder of a form.

    The values are those of JSON: times and decimal numbers are text, bytes are Base64, what is not a number is null.

    Args:
        form: `json`, `msgpack`, `avro:FILE` of a schema, `protobuf:FILE:MESSAGE` with a file that
            `protoc --include_imports --descriptor_set_out=FILE` has written, or `registry:URL` of a schema registry.
        credentials: of the registry.
        timeout_s: of the registry.

    Raises:
        ValueError: the form is unknown, or its file or URL cannot be used.
        OSError: its file cannot be read.
        ModuleNotFoundError: the library for it is not installed; the text names the extra that has it.
    """
    kind, _, rest = form.partition(":")
    return _as_json(_decoder(kind, rest, credentials, timeout_s))


def registry_credentials() -> Credentials | None:
    """Return the user that the environment names for the registry, or None.

    Raises:
        ValueError: the file of its secret cannot be used, or one of the two variables is missing.
    """
    user, file = os.environ.get(_USER, ""), os.environ.get(_SECRET_FILE, "")
    if not user and not file:
        return None
    if not user or not file:
        raise ValueError(f"set both {_USER} and {_SECRET_FILE}, or neither")
    return credentials_of(user, file)


def guessed_value(body: bytes) -> tuple[str, Any] | None:
    """Return the form and the value of a body that is JSON or MessagePack by the look of it, or None.

    Objects, arrays and texts of JSON, and maps and arrays of MessagePack are recognised, if all of the body is one.
    """
    start = body.lstrip()[:1]
    form = "json" if start and start in _JSON_BEGINS else "msgpack" if body[:1] and body[0] in _MSGPACK_BEGINS else None
    if form is None:
        return None
    try:
        return form, (_JSON if form == "json" else _MSGPACK)(body)
    except Exception:  # of several kinds, for what is not of the form
        return None


def _decoder(kind: str, rest: str, credentials: Credentials | None, timeout_s: float) -> Decode:
    match kind:
        case "json" if not rest:
            return msgspec.json.decode
        case "msgpack" if not rest:
            return _of_msgpack
        case "avro" if rest:
            from reput_client.serialize.avro import Avro

            return Avro(Path(rest)).deserialize
        case "protobuf" if ":" in rest:
            file, _, message = rest.rpartition(":")
            return _of_descriptors(Path(file), message)
        case "registry" if rest:
            return _ByRegistry(SchemaRegistry(rest, credentials=credentials, timeout_s=timeout_s)).deserialize
    raise ValueError("write json, msgpack, avro:FILE, protobuf:FILE:MESSAGE or registry:URL")


def _of_msgpack(body: bytes) -> Any:
    return _json_names(msgspec.msgpack.decode(body, ext_hook=_extension))


def _extension(code: int, data: memoryview) -> Any:
    return {"extension": code, "data": b64encode(data).decode()}


def _json_names(value: Any) -> Any:
    """Return a value whose maps have only names that JSON has: others become text."""
    if isinstance(value, dict):
        return {name if isinstance(name, str) else _name(name): _json_names(part) for name, part in value.items()}
    return [_json_names(part) for part in value] if isinstance(value, list | tuple) else value


def _name(name: Any) -> str:
    if isinstance(name, bytes):
        return name.decode("utf-8", "backslashreplace")
    return msgspec.json.encode(name).decode().strip('"')


def _as_json(decode: Decode) -> Decode:
    """Make the values those of JSON."""

    def decoded(body: bytes) -> Any:
        return msgspec.json.decode(msgspec.json.encode(decode(body)))

    return decoded


_JSON: Final = _as_json(msgspec.json.decode)
_MSGPACK: Final = _as_json(_of_msgpack)


def _of_descriptors(file: Path, message: str) -> Decode:
    """Return the decoder of a message in what `protoc --include_imports --descriptor_set_out=FILE` has written.

    Raises:
        ValueError: it is not such a file, or does not have the message.
    """
    _import_protobuf()
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    try:
        for each in FileDescriptorSet.FromString(file.read_bytes()).file:
            pool.Add(each)
        found = pool.FindMessageTypeByName(message)
    except OSError:
        raise
    except Exception as error:  # of several kinds, for what is not a descriptor set
        raise ValueError(
            f"{error}; the file is made with protoc --include_imports --descriptor_set_out=FILE"
        ) from error
    return _of_message(found)


def _import_protobuf() -> None:
    import_module("reput_client.serialize.protobuf")  # names the extra if it is not installed


def _of_message(message: Descriptor) -> Decode:
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message_factory import GetMessageClass

    kind = GetMessageClass(message)
    return lambda body: MessageToDict(kind.FromString(body), preserving_proto_field_name=True)


class _ByRegistry:
    """Decodes bodies by the schemas whose ids they have."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._avro: Decode | None = None
        self._protobuf: dict[tuple[int, tuple[int, ...]], Decode] = {}

    def deserialize(self, body: bytes) -> Any:
        """Return the value of a body; raises what the client's deserializers raise."""
        schema_id = schema_id_of(body)
        kind = self._registry.schema(schema_id).kind
        if kind == "JSON":
            return msgspec.json.decode(body[FRAME_BYTES:])
        if kind == "PROTOBUF":
            indexes, start = decode_indexes(body)
            return self._protobuf_decoder(schema_id, indexes)(body[start:])
        if kind != "AVRO":
            raise ValueError(f"schema {schema_id} is of the unknown kind {kind}")
        if self._avro is None:
            from reput_client.serialize.avro import Avro

            self._avro = Avro(registry=self._registry).deserialize
        return self._avro(body)

    def _protobuf_decoder(self, schema_id: int, indexes: Sequence[int]) -> Decode:
        place = (schema_id, tuple(indexes))
        decode = self._protobuf.get(place)
        if decode is None:
            _import_protobuf()
            from google.protobuf.descriptor_pool import DescriptorPool

            pool, name = DescriptorPool(), f"schema-{schema_id}.proto"
            self._add(pool, name, self._registry.schema(schema_id, serialized=True), set())
            file = pool.FindFileByName(name)
            message = list(file.message_types_by_name.values())[indexes[0]]
            for index in indexes[1:]:
                message = message.nested_types[index]
            if len(self._protobuf) >= _CLASSES_MAX:
                self._protobuf.clear()
            decode = self._protobuf[place] = _of_message(message)
        return decode

    def _add(self, pool: DescriptorPool, name: str, schema: Schema, added: set[str]) -> None:
        """Add a file to the pool, after the files that it imports."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto

        added.add(name)
        file = FileDescriptorProto.FromString(b64decode(schema.text))
        file.name = name
        for each in file.dependency:
            if each.startswith(_GOOGLE) and each not in added:
                module = import_module(each.removesuffix(".proto").replace("/", ".") + "_pb2")
                known = FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
                pool.Add(known)
                added.add(each)
        for reference in schema.references:
            if reference.name not in added:
                found = self._registry.version(reference.subject, reference.version, serialized=True)
                self._add(pool, reference.name, found.schema, added)
        pool.Add(file)
