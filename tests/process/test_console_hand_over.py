"""A hand-over between two brokers of a replica group in a real browser, as a user with and without the right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from reput_broker.access.model import Users
from reput_broker.access.user_file import UserFile
from reput_broker.broker import Broker
from support.browser import CHROMIUM, Browser, Page
from support.console_actions import MAY, SECRET, SEES, log_in
from support.elected_group import ElectedGroup

pytestmark = [
    pytest.mark.process,
    pytest.mark.trio,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]


@asynccontextmanager
async def two_brokers(path: Path) -> AsyncIterator[ElectedGroup]:
    """Run two brokers of a group in sync, each with the users; member 0 is the master."""
    group = ElectedGroup(path, lease_s=20.0)
    access = {"enabled": True, "admin_secret": SECRET}
    async with AsyncExitStack() as brokers:
        for number in range(2):
            users = UserFile(path / str(number) / "access" / "users.json")
            for user in (MAY, SEES):
                users.change(partial(Users.with_user, user=user))
            await brokers.enter_async_context(group.member(number, in_sync_timeout_s=20.0, http_port=0, access=access))
        await group.in_sync(0, 1)
        yield group


def opened(browser: Browser, broker: Broker, user: str) -> Page:
    """Open the page of the cluster as a user."""
    page = browser.page(1280, 900)
    page.open(f"http://{broker.http_address}/console/#/cluster")
    log_in(page, user)
    page.shows("Slaves of this broker")
    page.shows("in sync")
    return page


async def test_a_user_with_the_right_hands_over_and_the_page_follows(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as group:
        first, second = group.brokers[0], group.brokers[1]

        def hand_over(browser: Browser) -> Page:
            page = opened(browser, first, MAY.name)
            page.click("[data-action=promote-broker]")
            page.fill("#field-broker_id", "2")
            page.click("dialog .primary", "Show what changes")
            page.shows("member 2 is not in sync")
            assert page.run("document.getElementById('perform').disabled"), "it would have to be forced"
            page.fill("#field-broker_id", "1")
            page.click("dialog .primary", "Show what changes")
            page.until("!document.getElementById('perform').hidden")
            assert page.run("document.getElementById('perform').disabled"), "its number is not typed yet"
            assert group.state.record.successor is None, "the form only says what would happen"
            page.write("1")
            page.until("!document.getElementById('perform').disabled")
            page.click("#perform")
            page.shows("broker 1 becomes the master")
            return page

        with Browser() as browser:
            page = await trio.to_thread.run_sync(hand_over, browser)
            assert await group.in_sync(0, 1) is second
            # The page is still that of the first broker, which is a slave now, and lists both with their new roles.
            await trio.to_thread.run_sync(page.shows, "Behind its master")
            roles = "[...document.querySelectorAll('main tbody')[0].rows].map((row) => row.innerText).join(' ')"
            await trio.to_thread.run_sync(
                page.until, f"/slave[^]*{first.address}/.test({roles}) && /master[^]*{second.address}/.test({roles})"
            )
            # While a broker changes its role, it has no data to show.
            assert all("status of 503" in problem for problem in page.problems)


async def test_a_user_without_the_right_cannot_hand_over(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as group:

        def look(browser: Browser) -> None:
            page = opened(browser, group.brokers[0], SEES.name)
            assert page.run("document.querySelectorAll('[data-action]').length") == 0
            status = page.run(
                "fetch('api/actions/promote-broker', {method: 'POST', headers: {'X-Reput-Console': '1'}, "
                "body: JSON.stringify({values: {broker_id: '1'}, typed: '1'})}).then((answer) => answer.status)"
            )
            assert status == 403, "the broker refuses what the page does not offer"

        with Browser() as browser:
            await trio.to_thread.run_sync(look, browser)
        assert group.state.record.successor is None
