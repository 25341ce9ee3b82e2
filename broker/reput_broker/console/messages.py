"""Messages by id or by key, one of them whole with what became of it, and their export."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

import trio

from reput_broker.console.source import Bodies, DecodedBody, InvalidQuery, Query, Source
from reput_client.errors import DamagedMessage
from reput_client.message_json import NOT_DECODED, message_members
from reput_protocol import properties as names
from reput_protocol.codes import MessageSysFlag
from reput_protocol.commands.query import TIME_MAX_MS
from reput_protocol.errors import InvalidMessage, ReputError
from reput_protocol.printable import printable_json
from reput_protocol.record.compression import compression_method

if TYPE_CHECKING:
    from reput_client.received import ReceivedMessage

SHOWN_BYTES: Final = 64 * 1024
"""Of a body; the rest can be downloaded."""
_VALUE_CHARS_MAX: Final = 256 * 1024
"""Of a value as JSON; the rest can be downloaded."""
_FOUND_MAX: Final = 64
_EXPORTED_AT_ONCE: Final = 64
"""Messages of one request, whose ids fit into its head; a page that exports more makes several."""


def summary_of(message: ReceivedMessage, bodies: Bodies) -> dict[str, Any]:
    """Return a message as a row of a list; of a damaged one without what may be wrong. May block."""
    row: dict[str, Any] = {
        "id": None,
        "unique_id": None,
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "stored_ms": None,
        "tag": None,
        "keys": [],
        "size_bytes": message.record_bytes,
        "preview": "",
        "is_compressed": False,
        "fault": None,
    }
    try:
        row["id"] = message.offset_message_id
        row["stored_ms"] = message.store_timestamp_ms
        row["is_compressed"] = is_compressed = bool(message.sys_flag & MessageSysFlag.COMPRESSED)
        body = message.raw_body
    except DamagedMessage as damage:
        return {**row, "fault": damage.reason}
    return {
        **row,
        "unique_id": message.get_property(names.UNIQ_KEY),
        "tag": message.tag,
        "keys": list(message.keys),
        "size_bytes": len(body),
        "preview": "" if is_compressed else bodies.preview(message),
    }


def stored_ms_of(message: ReceivedMessage) -> int | None:
    """Return when a message was stored, None if its record cannot be read."""
    try:
        return message.store_timestamp_ms
    except DamagedMessage:
        return None


async def show_message(source: Source, query: Query) -> dict[str, Any]:
    """Return the message with an offset message id: all fields, the start of its body, and the body's value."""
    message = await _view(source, query.needed("id"))

    def shown() -> tuple[dict[str, Any], tuple[bytes, bool, str | None], DecodedBody]:
        return summary_of(message, source.bodies), _shown_body(message), source.bodies.decoded(message)

    summary, (body, is_whole, trouble), decoded = await trio.to_thread.run_sync(shown)
    return {
        **summary,
        "at_ms": source.at_ms,
        "born_ms": message.born_timestamp_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "log_offset": message.physical_offset,
        "record_bytes": message.record_bytes,
        "attempts": message.reconsume_times,
        "flag": message.flag,
        "properties": message.properties,
        "compression": compression_method(message.sys_flag),
        "body_base64": base64.b64encode(body).decode(),
        "is_whole": is_whole,
        "trouble": trouble,
        **await trio.to_thread.run_sync(_value_members, decoded),
    }


def _value_members(decoded: DecodedBody) -> dict[str, Any]:
    """Return the value of a body as text in JSON. Its numbers have more digits than those of a browser."""
    members = {"form": decoded.form, "value": None, "value_trouble": decoded.trouble}
    if decoded.value is not NOT_DECODED:
        text = json.dumps(decoded.value, ensure_ascii=False, indent=2)
        members["value"] = text if len(text) <= _VALUE_CHARS_MAX else text[:_VALUE_CHARS_MAX] + "\n…"
    return members


async def show_history(source: Source, query: Query) -> dict[str, Any]:
    """Return what became of the message with an offset message id: `Admin.message_history` in the order of time."""
    try:
        history = await source.admin.message_history(query.needed("id"))
    except InvalidMessage as error:
        raise InvalidQuery(str(error)) from error
    return {
        "at_ms": source.at_ms,
        "origin": history.message.offset_message_id,
        "steps": [dataclasses.asdict(step) for step in history.steps],
        "tracks": [
            {
                "group": track.group,
                "state": track.state.value,
                "committed": track.committed_offset,
                "client_id": track.client_id,
                "last_commit_ms": track.last_commit_timestamp,
            }
            for track in history.tracks
        ],
        "trace_parent": history.trace_parent,
        "missing": history.missing,
    }


async def download_body(source: Source, query: Query) -> tuple[str, bytes]:
    """Return the whole body of a message, decompressed if that is possible, and a file name for it."""
    message_id = query.needed("id")
    message = await _view(source, message_id)

    def body() -> bytes:
        try:
            return message.body
        except ReputError:
            return message.raw_body

    return f"{message_id}.bin", await trio.to_thread.run_sync(body)


def exported_ids(query: Query) -> list[str]:
    """Return the offset message ids of `ids`, separated by commas."""
    ids = [each for each in query.text("ids", size_max=_EXPORTED_AT_ONCE * 64).split(",") if each]
    if not 0 < len(ids) <= _EXPORTED_AT_ONCE:
        raise InvalidQuery(f"ids are 1 to {_EXPORTED_AT_ONCE} offset message ids, separated by commas")
    return ids


async def export_messages(source: Source, ids: list[str], making: trio.CapacityLimiter) -> AsyncGenerator[bytes]:
    """Yield messages as JSON lines: those of `reput consume -O json`, and the value of a body that is not JSON.

    One that is gone or damaged has its id and the `error`.

    Args:
        making: held while a line is made.
    """
    for message_id in ids:
        async with making:
            try:
                line = await trio.to_thread.run_sync(_exported, await _view(source, message_id), source.bodies)
            except (InvalidQuery, ReputError) as error:
                line = printable_json({"offset_message_id": message_id, "error": str(error)})
        yield line.encode() + b"\n"


def _exported(message: ReceivedMessage, bodies: Bodies) -> str:
    members, decoded = message_members(message), bodies.decoded(message)
    if decoded.value is not NOT_DECODED and decoded.form != "json":
        members["value"] = decoded.value
    return printable_json(members)


def _shown_body(message: ReceivedMessage) -> tuple[bytes, bool, str | None]:
    """Return the start of the body, whether it is all of it, and why it is not decompressed, if so."""
    stored, method = message.raw_body, compression_method(message.sys_flag)
    if method is None:
        return stored[:SHOWN_BYTES], len(stored) <= SHOWN_BYTES, None
    trouble = f"compressed with {method}, which the console cannot decompress: these are the stored bytes"
    if method == "zlib":
        inflater = zlib.decompressobj()
        try:
            head = inflater.decompress(stored, SHOWN_BYTES)
            return head, inflater.eof, None
        except zlib.error as error:
            trouble = f"marked as compressed, but cannot be decompressed ({error}): these are the stored bytes"
    return stored[:SHOWN_BYTES], len(stored) <= SHOWN_BYTES, trouble


async def _view(source: Source, message_id: str) -> ReceivedMessage:
    try:
        return await source.admin.view_message(message_id)
    except InvalidMessage as error:
        raise InvalidQuery(f"{error}; a producer's message_id is found by topic and key") from error


async def find_messages(source: Source, query: Query) -> dict[str, Any]:
    """Return the messages of `topic` with a key or unique id, newest first."""
    found = await source.admin.find_messages(
        query.needed("topic"),
        query.needed("key"),
        max_messages=query.number("count", 32, 1, _FOUND_MAX),
        begin=query.number("from_ms", 0),
        end=query.number("to_ms", TIME_MAX_MS),
    )

    def rows() -> list[dict[str, Any]]:
        return [summary_of(message, source.bodies) for message in found.messages]

    return {"messages": await trio.to_thread.run_sync(rows), "is_complete": found.complete}
