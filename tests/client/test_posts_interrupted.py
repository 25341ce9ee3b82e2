"""`post` in the blocking face where Ctrl-C comes at the worst moments: nothing hangs, and nothing is stored twice."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fakes import SILENCE, FakeBroker
from reput_client import Message, blocking
from reput_client.connection import Connection
from reput_client.core import ChannelCore, RequestTemplate
from reput_client.errors import PostsFailed, SendOutcomeUnknown
from reput_client.post_block import Block
from reput_client.post_gathering import Gathering
from reput_client.post_link import Link
from reput_client.post_steps import PostSteps
from reput_client.posted import Posted
from reput_client.posting import Posts
from reput_protocol.codes import RequestCode
from reput_protocol.record import decode_record

# Signal handlers run as a function begins and when it has returned: around each of these.
POINTS = [
    (Gathering, "begin"),
    (Gathering, "put"),
    (Gathering, "take"),
    (Gathering, "close"),
    (PostSteps, "begun"),
    (PostSteps, "leave"),
    (PostSteps, "step"),
    (PostSteps, "_finished"),
    (Block, "seal"),
    (Block, "template"),
    (Block, "finish"),
    (Block, "signal"),
    (Link, "add"),
    (Link, "send"),
    (Link, "answered"),
    (Posts, "_put"),
    (Posted, "__init__"),
    (RequestTemplate, "encode"),
    (Connection, "start_template"),
    (Connection, "flush_now"),
    (Connection, "_write_some"),
    (Connection, "_mark_written"),
    (Connection, "read_ready"),
    (ChannelCore, "new_call"),
    (ChannelCore, "receive_data"),
    (socket.socket, "send"),
    (socket.socket, "recv"),
]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


def interrupt(patch: pytest.MonkeyPatch, owner: type[Any], name: str, *, after: bool, at: int) -> None:
    """Have the call `at` of a function in this thread interrupted once."""
    real, me, calls = getattr(owner, name), threading.get_ident(), 0

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        mine = threading.get_ident() == me
        calls += mine
        if mine and calls == at and not after:
            raise KeyboardInterrupt
        result = real(*args, **options)
        if mine and calls == at and after:
            calls += 1
            raise KeyboardInterrupt
        return result

    patch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), POINTS, ids=lambda part: getattr(part, "__name__", part))
def test_an_interrupt_neither_hangs_nor_doubles_anything(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, after: bool, at: int
) -> None:
    options: dict[str, Any] = {"timeout_s": 0.5, "batch_bytes": 600, "linger_s": 0.001, "ack": "page_cache"}
    with contextlib.closing(blocking.Producer(broker.address, **options)) as producer:  # and never flush here
        producer.__enter__()
        producer.post(Message("t", b"warm"), queue_id=0).result()
        handles: list[Posted] = []
        told: list[Posted] = []
        with contextlib.suppress(KeyboardInterrupt), monkeypatch.context() as patch:
            interrupt(patch, owner, name, after=after, at=at)
            for number in range(24):
                on_done = None if number % 3 else told.append
                handles.append(
                    producer.post(Message("t", b"%d" % number), queue_id=number % 2, on_done=on_done)
                )
            producer.flush()
        _go_on(producer)

        assert all(each.done for each in handles)
        assert [told.count(each) for each in handles[::3]] == [1] * len(handles[::3])
        posts = producer._producer._posts
        assert (posts._gathering.held, len(posts._steps.unfinished)) == (0, 0)
        stored = [[decode_record(data).body for data in broker.log["t", queue]] for queue in (0, 1)]
        counts = collections.Counter(body for queue in stored for body in queue)
        assert max(counts.values()) == 1, "stored twice"
        for number, each in enumerate(handles):
            error = each.error
            if error is None:
                assert counts[b"%d" % number] == 1, "told stored, and is not"
            elif not isinstance(error, SendOutcomeUnknown):
                assert counts[b"%d" % number] == 0, f"stored, and told {error!r}"
        # What is told as unknown may have been on a connection that was given up, and come late.
        known = {b"%d" % number for number, each in enumerate(handles) if each.error is None}
        for queue in stored:
            numbers = [int(body) for body in queue if body in known]
            assert numbers == sorted(numbers)


def _go_on(producer: blocking.Producer) -> None:
    """Flush, and post once more; fail if that does not end."""

    def go_on() -> None:
        with contextlib.suppress(PostsFailed):
            producer.flush()
        producer.post(Message("t", b"later"), queue_id=0).result()
        producer.flush()
        ended.append(True)

    ended: list[bool] = []
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    thread.join(20.0)
    assert ended, "what follows an interrupt hangs or fails"


def test_an_interrupt_while_the_producer_closes_leaves_no_message_without_an_outcome(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.behave(RequestCode.PUT_MESSAGE, SILENCE)
    producer = blocking.Producer(broker.address, linger_s=60.0)
    producer.__enter__()
    posted = [producer.post(Message("t", b"x"), queue_id=queue) for queue in (0, 1)]
    interrupt(monkeypatch, Block, "give_up", after=True, at=1)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    assert all(each.done for each in posted)
    producer.close()
