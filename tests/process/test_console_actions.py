"""The console's actions in a real browser: each as a user with and as one without the right, and the login."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from reput_broker.console.actions import ACTIONS, FieldKind
from support.browser import CHROMIUM, Browser, Page
from support.console_actions import CASES, SECRET, SEES, World, log_in, user_of, world

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"),
]
_SHOWN = {
    "delayed": "mail-1",
    "delayed?topic=kept": "mail-2",
    "transactions": "tellers",
    "transactions?topic=kept": "tellers",
    "clients": "127.0.0.1",
    "users": "bob",
}
"""A text of the pages whose rows have the buttons, once their rows are there."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("actions") / "data") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


_pages: dict[str, Page] = {}


def logged_in(browser: Browser, scene: World, user: str) -> Page:
    """Return the page of a user, who logs in once."""
    if user not in _pages:
        page = _pages[user] = browser.page(1280, 900)
        page.open(f"http://{scene.http_address}/console/#/topics")
        log_in(page, user, SECRET)
        page.shows("orders")
    return _pages[user]


def go(page: Page, place: str) -> None:
    """Load a page again, and wait until it knows which buttons it has."""
    page.run("void (location.hash = '#/nowhere')")
    page.shows("There is no such page.")
    page.run("performance.clearResourceTimings()")
    page.run(f"void (location.hash = '#/{place}')")
    if place in _SHOWN:
        page.shows(_SHOWN[place])
    page.until(
        "performance.getEntriesByType('resource').some((one) => one.name.includes('/offered') && one.responseEnd)"
    )
    page.run("new Promise((done) => setTimeout(done))")


@pytest.mark.parametrize("name", CASES)
def test_an_action_is_done_by_its_form(browser: Browser, scene: World, name: str) -> None:
    case, action, values = CASES[name], ACTIONS[name], CASES[name].values_in(scene)
    page = logged_in(browser, scene, user_of(name))
    go(page, case.page)
    page.click_in_row(f"[data-action={name}]", case.row)
    page.until(f"document.querySelector('dialog').dataset.action === '{name}'")
    for field in action.fields:
        if field.name not in values or page.run(f"document.getElementById('field-{field.name}').readOnly"):
            continue
        page.fill(f"#field-{field.name}", values[field.name], is_box=field.kind is FieldKind.FLAG)
    page.click("dialog .primary", "Show what changes")
    page.shows(case.preview)
    assert not case.happened(scene), "the form only says what would happen"
    if not case.done:
        assert page.run("document.getElementById('perform').hidden")
        page.press("Escape")
        page.until("!document.querySelector('dialog')")
        return
    if action.typed:
        assert page.run("document.getElementById('perform').disabled"), "the name is not typed yet"
        page.write(values[action.typed])
    page.until("!document.getElementById('perform').disabled")
    page.click("#perform")
    page.until("!document.querySelector('dialog')")
    if case.leads_to:
        page.until(f"location.hash === '#/{case.leads_to}'")
    else:
        page.shows(case.done)
    assert case.happened(scene)
    if name == "set-intake":
        scene.admin.set_intake("open")
    assert page.problems == []


_OF_ONE_TOPIC = {"delayed": "delayed?topic=kept", "transactions": "transactions?topic=kept"}
"""Who does not administer the cluster sees those of a topic."""


@pytest.mark.parametrize(
    "place", sorted({_OF_ONE_TOPIC.get(case.page, case.page) for case in CASES.values()} - {"users"})
)
def test_a_user_without_the_right_sees_no_button(browser: Browser, scene: World, place: str) -> None:
    page = logged_in(browser, scene, SEES.name)
    go(page, place)
    page.shows("Topics")
    assert page.run("document.querySelectorAll('[data-action]').length") == 0
    assert page.run("[...document.querySelectorAll('#pages a')].every((one) => one.dataset.page !== 'users')")
    status = page.run(
        "fetch('api/actions/delete-topic', {method: 'POST', headers: {'X-Reput-Console': '1'}, body: JSON.stringify("
        "{values: {topic: 'orders'}, typed: 'orders'})}).then((answer) => answer.status)"
    )
    assert status == 403, "the broker refuses what the page does not offer"
    page.problems.clear()  # the refusal


def test_the_login_leads_back_and_a_wrong_secret_does_not(browser: Browser, scene: World) -> None:
    page = browser.page(360, 740, dark=True)
    page.open(f"http://{scene.http_address}/console/#/groups/billing")
    log_in(page, "may", SECRET + "x")
    page.shows("this is not the user's secret")
    assert page.run("document.documentElement.scrollWidth") <= 360
    assert page.run("document.cookie") == ""
    log_in(page, "may", SECRET)
    page.shows("Lag in each queue")
    assert page.run("document.cookie") == "", "scripts do not see the cookie"
    page.click("#login-button", "Log out")
    page.until("location.pathname.endsWith('/login.html') && document.getElementById('user')")
