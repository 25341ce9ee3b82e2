"""What a master sends, divided into whole, checked records, however it arrives."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reput_broker.ha import client
from reput_broker.ha.client import LogItem, ReceivedLog
from reput_broker.ha.frames import HAProtocolError
from reput_broker.store.base.options import StoreOptions
from support.stores import opened, put, small_options

FILE = 4096


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoreOptions, bytes]:
    """The log of a master, three files and a bit."""
    store = opened(small_options(tmp_path_factory.mktemp("master")))
    for number in range(30):
        put(store, b"%03d" % number + bytes(400), tag="a", topic=f"T{number % 3}")
    files = sorted(store.options.commit_log_dir.iterdir())
    return store.options, b"".join(path.read_bytes() for path in files)[: store.max_physical_offset]


def taken(received: ReceivedLog) -> list[bytes]:
    """Everything that can be appended now."""
    found = []
    while (item := received.take()) is not None:
        assert isinstance(item, LogItem)
        assert item.offset == received.offset
        found.append(bytes(item.data))
        item.data.release()
        received.drop(len(found[-1]))
    return found


@settings(max_examples=50)
@given(st.lists(st.integers(1, 3000), max_size=60), st.integers(1, 5000))
def test_any_pieces_become_the_same_log(
    master: tuple[StoreOptions, bytes], sizes: list[int], buffer_bytes: int
) -> None:
    options, log = master
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_BUFFER_BYTES", buffer_bytes)
        received = ReceivedLog(options, 0)
    items: list[bytes] = []
    at = 0
    for size in [*sizes, len(log)]:
        received.add(memoryview(log)[at : at + size])
        at = min(at + size, len(log))
        items += taken(received)
        assert received.offset <= at
    assert b"".join(items) == log
    position = 0
    for item in items:
        assert position // FILE == (position + len(item) - 1) // FILE, "no item spans two files"
        position += len(item)


@pytest.mark.parametrize("byte", range(0, 130, 7))
def test_a_record_with_a_changed_byte_is_refused_or_waits(master: tuple[StoreOptions, bytes], byte: int) -> None:
    """Sizes may announce more bytes than there are; nothing changed is ever handed over as it was."""
    options, log = master
    changed = bytearray(log[:2000])
    changed[byte] ^= 0x40
    received = ReceivedLog(options, 0)
    received.add(memoryview(changed))
    try:
        items = taken(received)
    except HAProtocolError as error:
        assert "log offset 0 cannot be stored" in str(error)  # noqa: PT017
        assert received.offset == 0
    else:
        # The body's checksum covers the body; other fields may have any value.
        assert not items or byte >= 12


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (bytes(100), "magic 0x00000000 is not that of a record"),
        (struct.pack(">iI", 100, 0xCBD43194), f"a blank record names 100 bytes, but {FILE} are left"),
        (struct.pack(">iI", -1, 0xCBD43194), "a blank record names -1 bytes"),
        (struct.pack(">iI", FILE - 7, 0xDAA320A7), "a record of 4089 bytes does not fit into the 4096 bytes left"),
        (struct.pack(">iI", (1 << 31) - 1, 0xDAA320A7), "does not fit"),
        (struct.pack(">iI", -5, 0xDAA320A7), "TOTALSIZE -5 is too small"),
    ],
)
def test_what_is_no_log_is_refused_before_it_is_buffered(tmp_path: Path, data: bytes, reason: str) -> None:
    received = ReceivedLog(small_options(tmp_path), 8 * FILE)
    received.add(memoryview(data))
    with pytest.raises(HAProtocolError, match=reason) as caught:
        received.take()
    assert f"log offset {8 * FILE} cannot be stored" in str(caught.value)


def test_a_record_at_another_place_is_refused(master: tuple[StoreOptions, bytes]) -> None:
    options, log = master
    received = ReceivedLog(options, FILE)
    received.add(memoryview(log)[:1000])
    with pytest.raises(HAProtocolError, match="PHYSICALOFFSET is 0, but the record lies at 4096"):
        received.take()


def test_a_topic_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"x", topic="up-up-up")
    log = bytearray((store.options.commit_log_dir / f"{0:020d}").read_bytes())
    at = log.index(b"up-up-up")
    log[at : at + 8] = b"../../up"
    received = ReceivedLog(store.options, 0)
    received.add(memoryview(log)[: store.max_physical_offset])
    with pytest.raises(HAProtocolError, match=r"has topic b'../../up'"):
        received.take()


def test_a_record_larger_than_this_broker_stores_is_refused(tmp_path: Path) -> None:
    options = small_options(tmp_path, commit_log_file_size=1 << 30, message_bytes_max=1000)
    received = ReceivedLog(options, 0)
    received.add(memoryview(struct.pack(">iI", 200_000, 0xDAA320A7)))
    with pytest.raises(HAProtocolError, match=r"has 200000 bytes; raise store\.message_size_max"):
        received.take()
