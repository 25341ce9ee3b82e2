"""What `reput consume --decode` makes of bodies: values that are printed as JSON."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from reput_client.credentials import Credentials, credentials_of
from reput_client.serialize.registered import FRAME_BYTES, decode_indexes, schema_id_of
from reput_client.serialize.registry import Schema, SchemaRegistry

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pool import DescriptorPool

Decode: TypeAlias = Callable[[bytes], Any]
_USER = "REPUT_REGISTRY_USER"
_SECRET_FILE = "REPUT_REGISTRY_SECRET_FILE"
_GOOGLE = "google/protobuf/"
_CLASSES_MAX = 1000


class DecodeType(click.ParamType[Decode]):
    """The form of bodies: `json`, `avro:FILE`, `protobuf:FILE:MESSAGE` or `registry:URL`."""

    name = "form"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decode:
        """Return the function from a body to a value for JSON."""
        form, _, rest = str(value).partition(":")
        try:
            return _as_json(_decoder(form, rest))
        except (ModuleNotFoundError, OSError, ValueError) as error:
            return self.fail(f"{value!r}: {error}", param, ctx)


def _decoder(form: str, rest: str) -> Decode:
    match form:
        case "json" if not rest:
            return msgspec.json.decode
        case "avro" if rest:
            from reput_client.serialize.avro import Avro

            return Avro(Path(rest)).deserialize
        case "protobuf" if ":" in rest:
            file, _, message = rest.rpartition(":")
            return _of_descriptors(Path(file), message)
        case "registry" if rest:
            return _ByRegistry(SchemaRegistry(rest, credentials=_registry_user())).deserialize
    raise ValueError("write json, avro:FILE, protobuf:FILE:MESSAGE or registry:URL")


def _registry_user() -> Credentials | None:
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


def _as_json(decode: Decode) -> Decode:
    """Make the values those of JSON: times and decimal numbers are text, bytes Base64, what is not a number null."""

    def decoded(body: bytes) -> Any:
        return msgspec.json.decode(msgspec.json.encode(decode(body)))

    return decoded


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
