"""Changes at a master whose tenure ends: refused, or answered as not known."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.ha.role_refusals import fenced, in_every_role
from reput_broker.put.put_lock import Fence
from reput_broker.remoting.request import Handled, Handler, Refusal, Response
from reput_protocol.codes import RequestCode
from reput_protocol.errors import ErrorCode

CODE = RequestCode.UPDATE_AND_CREATE_TOPIC
REQUEST: Any = None


@pytest.mark.trio
async def test_a_change_is_made_or_refused_or_answered_as_not_known() -> None:
    fence, saved = Fence(), trio.Event()

    async def change(_request: object) -> Handled:
        await saved.wait()
        return Response(0)

    handler = fenced({CODE: change}, fence)[CODE]
    outcomes: list[Handled | Refusal] = []

    async def ask() -> None:
        try:
            work = handler(REQUEST)
            assert isinstance(work, Awaitable)
            outcomes.append(await work)
        except Refusal as refusal:
            outcomes.append(refusal)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        fence.close("handing over")
        with trio.move_on_after(0) as settling:
            await fence.settled()
        assert settling.cancelled_caught, "the hand-over waits for it"
        await ask()
        assert isinstance(outcomes[0], Refusal)
        assert outcomes[0].error is ErrorCode.NOT_MASTER
        fence.end("handed over to member 2")
        saved.set()
    assert isinstance(outcomes[1], Refusal)
    assert outcomes[1].error is ErrorCode.TIMEOUT
    assert "handed over to member 2" in outcomes[1].text


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_AND_CREATE_TOPIC,  # kind, changes_tables
        RequestCode.QUERY_CONSUMER_OFFSET,  # kind, newest_only
        RequestCode.POP_MESSAGE,  # kind, pops
    ],
)
def test_no_request_of_operators_has_a_row_that_would_have_no_effect(code: RequestCode) -> None:
    served: dict[int, Handler] = {RequestCode.FLUSH_LOG: lambda _: Response()}
    assert in_every_role(served) is served
    with pytest.raises(ValueError, match=f"the row of request {int(code)} has kind"):
        in_every_role({**served, code: lambda _: Response()})
