"""A store to get from, and what a get says."""

from __future__ import annotations

from pathlib import Path

from reput_broker.store.base.results import GetMessageResult, GetStatus
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.record import decode_record
from support.stores import dispatch_all, opened, put, small_options


def store_of_25(directory: Path, *, numbered: bool = False) -> MessageStore:
    """Return a store whose queue 0 holds 25 messages tagged a and b by turns, in queue files of 10.

    With `numbered` the property `n` is the message's number.
    """
    store = opened(small_options(directory, commit_log_file_size=1 << 16))
    for number in range(25):
        properties = {"n": str(number)} if numbered else {}
        put(store, b"%02d" % number + bytes(98), tag="ab"[number % 2], properties=properties)
    dispatch_all(store)
    return store


def numbers(store: MessageStore, result: GetMessageResult) -> list[int]:
    """Return the numbers of the messages that a get has found."""
    data = store.read_extents(result.extents, cold=result.cold)
    found, position = [], 0
    while position < len(data):
        found.append(int(decode_record(data, position).body[:2]))
        position += int.from_bytes(data[position : position + 4], "big")
    assert (len(found), len(data)) == (result.count, result.size)
    return found


def outline(result: GetMessageResult) -> tuple[GetStatus, int, int, int]:
    """Return the status of a get, where the next one begins, and the bounds of the queue."""
    return result.status, result.next_begin_offset, result.min_offset, result.max_offset
