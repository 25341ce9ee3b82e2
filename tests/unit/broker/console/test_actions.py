"""The actions of the console over HTTP: each row with and without the right, and what guards all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reput_broker.access import requests as access_requests
from reput_broker.access.model import Account, User
from reput_broker.console import app
from reput_broker.console.actions import ACTIONS, Action, FieldKind, Place, offered
from reput_broker.console.source import InvalidQuery
from reput_protocol.rights import Kind, rule_of
from support.console_actions import CASES, NOTHING, SECRET, SEES, World, user_of, world
from support.console_client import Answer, ConsoleClient


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("actions") / "data") as found:
        yield found


_browsers: dict[tuple[str, str], ConsoleClient] = {}


def browser_of(scene: World, user: str) -> ConsoleClient:
    """Return a browser in which a user is logged in."""
    key = (scene.http_address, user)
    if key not in _browsers:
        client = _browsers[key] = ConsoleClient(scene.http_address)
        assert client.post("login", {"user": user, "secret": SECRET}).status == 200
    return _browsers[key]


def act(client: ConsoleClient, name: str, values: dict[str, Any], **members: Any) -> Answer:
    return client.post(f"actions/{name}", {"values": values, **members})


@pytest.mark.parametrize("name", CASES)
def test_a_user_without_the_right_is_refused_here_and_by_the_broker(
    scene: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the check of the table were missing: the broker checks the requests themselves."""
    case, values = CASES[name], CASES[name].values_in(scene)
    confirmed = {"typed": values.get(ACTIONS[name].typed, ""), "force": True}
    for user in (NOTHING.name, SEES.name):
        refused = act(browser_of(scene, user), name, values, **confirmed)
        assert refused.status == 403, refused
        assert "lacks the right" in refused.members["error"]
    with monkeypatch.context() as patch:
        patch.setattr(Action, "lacking", lambda *_: None)
        refused = act(browser_of(scene, NOTHING.name), name, values, **confirmed)
    assert refused.status == 403, refused
    assert not case.happened(scene)


@pytest.mark.parametrize("name", CASES)
def test_an_action_says_what_it_would_do_and_does_it_once_confirmed(scene: World, name: str) -> None:
    case, action, values = CASES[name], ACTIONS[name], CASES[name].values_in(scene)
    client = browser_of(scene, user_of(name))
    answer = act(client, name, values, dry_run=True)
    assert answer.status == 200, answer
    preview = answer.members["preview"]
    assert case.preview in " ".join((preview["text"], *preview["notes"]))
    assert not case.happened(scene), "a dry run changes nothing"
    if action.typed:
        refused = act(client, name, values, typed=f"{values[action.typed]}x")
        assert refused.status == 409
        assert not case.happened(scene), "the name was not typed"
    done = act(client, name, values, typed=values.get(action.typed, ""))
    if not case.done:
        assert (done.status, done.members["error"]) == (409, preview["obstacle"])
        return
    assert done.status == 200, done
    assert case.done in done.members["text"]
    assert case.happened(scene)
    if name == "set-intake":
        scene.admin.set_intake("open")


def test_each_change_has_a_line_in_the_log_without_secrets(scene: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[dict[str, Any]] = []

    class Log:
        def info(self, event: str, **facts: Any) -> None:
            lines.append({"event": event, **facts})

    monkeypatch.setattr(app, "log", Log())
    monkeypatch.setattr(access_requests, "log", Log())
    client = browser_of(scene, user_of("create-user"))
    values = {"user": "erin", "secret": SECRET, "groups": ""}
    assert act(client, "create-user", values, dry_run=True).status == 200
    assert act(client, "create-user", values).status == 200
    assert act(client, "create-user", values).status == 409
    assert act(browser_of(scene, SEES.name), "delete-user", {"user": "erin"}).status == 403
    changes = [line for line in lines if line["event"] == "console_change"]
    common = {"event": "console_change", "account": "erin", "peer": "127.0.0.1"}
    by_admin = {**common, "user": "admin", "action": "create-user"}
    assert changes == [
        {**by_admin, "outcome": "done"},
        {**by_admin, "outcome": "there is a user 'erin' already"},
        {
            **common,
            "user": "sees",
            "action": "delete-user",
            "outcome": "user 'sees' lacks the right to change users: an administrator has it",
        },
    ]
    assert SECRET not in str(lines)
    requests = [(line["user"], line["request"]) for line in lines if line["event"] == "administrative_request"]
    assert ("admin", "AUTH_CREATE_USER") in requests


def test_only_the_buttons_of_a_users_rights_are_offered(scene: World) -> None:
    def names(user: str, place: str, name: str = "") -> list[str]:
        found = browser_of(scene, user).get("offered", place=place, name=name)["offered"]
        return list(found[name])

    for place in Place:
        assert names(NOTHING.name, place, "orders") == names(SEES.name, place, "orders") == [], place
        assert names("admin", place, "orders") == [row.name for row in ACTIONS.values() if row.place == place]
    assert ConsoleClient(scene.http_address).ask("GET", "/console/api/offered?place=topics").status == 401


def test_a_right_on_one_name_offers_the_actions_about_that_name() -> None:
    user = Account(
        User("u", SECRET),
        (rule_of("topic:orders", ["write"]), rule_of("topic:mine*", ["admin"]), rule_of("group:g", ["admin"])),
    )
    found = offered(user, "topic", ["orders", "mine-1", "other"], has_users=True)
    assert found == {"orders": ["send-message"], "mine-1": ["alter-topic", "delete-topic"], "other": []}
    assert offered(user, "topics", [], has_users=True) == {"": ["create-topic"]}
    assert "reset-group" in offered(user, "group", ["g"], has_users=True)["g"]
    assert offered(user, "group", ["other"], has_users=True) == {"other": []}
    administrator = Account(User("a", SECRET, is_admin=True), ())
    assert offered(administrator, "users", [], has_users=False) == {"": []}, "there are no users"


def test_each_single_right_of_an_action_is_needed() -> None:
    for action in ACTIONS.values():
        values = {field.name: "name" for field in action.fields}
        names = [f":{'name' if need.field else 'any'}" * (need.kind is not Kind.CLUSTER) for need in action.needs]
        rules = [rule_of(f"{need.kind}{name}", [need.right]) for need, name in zip(action.needs, names, strict=True)]
        may = Account(User("u", SECRET), tuple(rules))
        assert (action.lacking(may, values) is None) is not action.is_of_users, action.name
        for missing in rules:
            if any(rule is not missing and rule.resource == missing.resource for rule in rules):
                continue  # another right on it includes this one, or the other way round
            lacks = Account(User("u", SECRET), tuple(rule for rule in rules if rule is not missing))
            assert action.lacking(lacks, values) is not None, action.name


def test_fields_are_checked(scene: World) -> None:
    client = browser_of(scene, "may")
    for values, error in (
        ({"topic": "t", "queues": "0", "permission": "rw"}, "queues is 0, and must be within 1 and 65535"),
        ({"topic": "t", "queues": "4", "permission": "all"}, "permission is 'all', and must be one of rw, r, w, none"),
        ({"queues": "4", "permission": "rw"}, "topic is missing"),
        ({"topic": "t", "queues": "4", "permission": "rw", "perm": "6"}, "create-topic has no field 'perm'"),
        ({"topic": 7, "queues": "4", "permission": "rw"}, "topic is not a text"),
    ):
        refused = act(client, "create-topic", values, dry_run=True)
        assert refused.status == 400
        assert error in refused.members["error"]
    for name, values, error in (
        ("send-message", {"topic": "orders", "properties": "no value"}, "write NAME=VALUE"),
        ("send-message", {"topic": "orders", "queue": "99"}, "queue is 99"),
        ("send-message", {"topic": "orders", "delay": "soon"}, "not a duration"),
        ("reset-group", {"group": "billing", "topic": "orders", "to": "yesterday"}, "write earliest, latest"),
        ("rewind-group", {"group": "billing", "topic": "orders"}, "name either the message or the count"),
        ("skip-group", {"group": "billing", "topic": "orders", "count": "2"}, "name the queue"),
    ):
        refused = act(client, name, values, dry_run=True)
        assert (refused.status, error in refused.members["error"]) == (400, True), refused
    refused = act(client, "create-topic", {"topic": "rmq_sys_x", "queues": "4", "permission": "rw"})
    assert (refused.status, refused.members["error"]) == (409, "topic rmq_sys_x belongs to the broker")
    assert client.post("actions/create-topic", {"values": []}).status == 400
    assert client.post("actions/nothing", {}).status == 405


def test_an_obstacle_can_be_overcome_by_force_where_that_is_offered(scene: World) -> None:
    from reput_client.blocking import Consumer, Credentials

    client, values = browser_of(scene, "may"), {"group": "busy", "topic": "orders", "to": "earliest"}
    credentials = Credentials("may", SECRET)
    with Consumer(
        scene.broker.address, group="busy", topic="orders", start="latest", credentials=credentials
    ) as consumer:
        consumer.receive(timeout_s=1.0)
        preview = act(client, "reset-group", values, dry_run=True).members["preview"]
        assert (preview["can_force"], preview["obstacle"][:15]) == (True, "1 member online")
        assert act(client, "reset-group", values, typed="busy").status == 409
        assert act(client, "reset-group", values, typed="busy", force=True).status == 200


def test_a_row_of_the_table_is_whole() -> None:
    for name, action in ACTIONS.items():
        fields = {field.name: field for field in action.fields}
        assert name == action.name
        assert len(fields) == len(action.fields)
        assert {need.field for need in action.needs} <= {"", *fields}
        assert {action.typed, action.about} <= {"", *fields}
        logged = action.logged(dict.fromkeys(fields, "x"))
        assert not logged.keys() & {"event", "user", "action", "peer", "outcome"}, "the log has these of its own"
        assert action.needs or action.is_of_users, "every action needs a right"
        for field in action.fields:
            assert bool(field.choices) is (field.kind is FieldKind.CHOICE)
        with pytest.raises(InvalidQuery, match="is missing"):
            action.read({})
