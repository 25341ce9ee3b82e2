"""Requests of the broker's own pages: every way in which a processor answers, refusals, and the end of the broker."""

from __future__ import annotations

import pytest
import trio

from reput_broker.request import Refusal, Request, Response
from reput_broker.server.dispatch import RequestDispatcher
from reput_broker.server.local_requests import LocalRequests
from reput_protocol.errors import BrokerError, ErrorCode, NotFound


def at_once(request: Request) -> Response:
    return Response(0, dict(request.ext), bytes(request.body))


async def after_awaiting(request: Request) -> Response:
    await trio.sleep(1)
    return Response(0, body=b"awaited")


def from_a_task(request: Request) -> None:
    async def answer() -> None:
        await trio.sleep(1)
        request.reply(Response(0, body=b"later"))
        request.reply(Response(0, body=b"once more"))

    request.client.spawn(answer)


def refusing(request: Request) -> Response:
    raise Refusal(ErrorCode.NOT_FOUND, "there is nothing; look elsewhere")


@pytest.mark.trio
async def test_every_way_to_answer(autojump_clock: trio.testing.MockClock) -> None:
    requests = LocalRequests(RequestDispatcher({1: at_once, 2: after_awaiting, 3: from_a_task, 4: refusing}))
    answer = await requests.ask_ok(1, {"name": "x", "number": 7}, b"body")
    assert (answer.ext, answer.body) == ({"name": "x", "number": 7}, b"body")
    assert (await requests.ask_ok(2, {})).body == b"awaited"
    assert (await requests.ask_ok(3, {})).body == b"later"
    with pytest.raises(NotFound, match="there is nothing; look elsewhere"):
        await requests.ask_ok(4, {})
    assert (await requests.ask(4, {})).code == ErrorCode.NOT_FOUND.response_code
    with pytest.raises(BrokerError, match="not supported"):
        await requests.ask_ok(999, {})
    assert not requests.is_busy


@pytest.mark.trio
async def test_the_end_waits_for_what_has_begun_and_refuses_the_rest(
    autojump_clock: trio.testing.MockClock,
) -> None:
    requests = LocalRequests(RequestDispatcher({3: from_a_task}))
    answers: list[bytes] = []

    async def ask() -> None:
        answers.append((await requests.ask_ok(3, {})).body)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.5)
        requests.end()
        assert requests.is_busy
        with pytest.raises(BrokerError) as refused:
            await requests.ask(3, {})
        assert refused.value.error is ErrorCode.DRAINING
    assert answers == [b"later"]
    assert not requests.is_busy


@pytest.mark.trio
async def test_a_request_that_is_given_up_ends_its_tasks(autojump_clock: trio.testing.MockClock) -> None:
    requests = LocalRequests(RequestDispatcher({3: from_a_task}))
    with trio.move_on_after(0.5):
        await requests.ask(3, {})
    assert not requests.is_busy
