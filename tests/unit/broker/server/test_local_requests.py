"""Requests of the broker's own pages: every way in which a processor answers, refusals, and the end of the broker."""

from __future__ import annotations

import pytest
import trio

from reput_broker.remoting.request import Refusal, Request, Response
from reput_broker.server.handling import RequestHandling
from reput_broker.server.local_requests import LocalRequests
from reput_protocol.codes import RequestCode
from reput_protocol.errors import BrokerError, ErrorCode

AT_ONCE, AWAITED, LATER, REFUSED = (
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
)


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
    requests = LocalRequests(
        RequestHandling({AT_ONCE: at_once, AWAITED: after_awaiting, LATER: from_a_task, REFUSED: refusing})
    )
    answer = await requests.ask(AT_ONCE, {"name": "x", "number": 7}, b"body")
    assert (answer.ext, answer.body) == ({"name": "x", "number": 7}, b"body")
    assert (await requests.ask(AWAITED, {})).body == b"awaited"
    assert (await requests.ask(LATER, {})).body == b"later"
    refused = await requests.ask(REFUSED, {})
    assert refused.code == ErrorCode.NOT_FOUND.response_code
    assert refused.remark == "NOT_FOUND: there is nothing; look elsewhere"
    assert "not supported" in str((await requests.ask(999, {})).remark)
    assert not requests.is_busy


def test_a_request_without_a_row_cannot_be_served() -> None:
    with pytest.raises(ValueError, match="request 999 has no row"):
        RequestHandling({999: at_once})


@pytest.mark.trio
async def test_the_end_waits_for_what_has_begun_and_refuses_the_rest(autojump_clock: trio.testing.MockClock) -> None:
    requests = LocalRequests(RequestHandling({LATER: from_a_task}))
    answers: list[bytes] = []

    async def ask() -> None:
        answers.append((await requests.ask(LATER, {})).body)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.5)
        requests.end()
        assert requests.is_busy
        with pytest.raises(BrokerError) as refused:
            await requests.ask(LATER, {})
        assert refused.value.error is ErrorCode.DRAINING
    assert answers == [b"later"]
    assert not requests.is_busy


@pytest.mark.trio
async def test_a_request_that_is_given_up_ends_its_tasks(autojump_clock: trio.testing.MockClock) -> None:
    requests = LocalRequests(RequestHandling({LATER: from_a_task}))
    with trio.move_on_after(0.5):
        await requests.ask(LATER, {})
    assert not requests.is_busy
