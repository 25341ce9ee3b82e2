"""What the console refuses: pages of other sites, changes without login, wrong tokens, other hosts, too many pages."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from reput_broker.access.control import AccessControl, Attempts
from reput_broker.access.model import User, Users
from reput_broker.access.pages import LASTS_S, Logins, TooManyAttempts
from reput_broker.access.user_file import UserFile
from reput_broker.background import BackgroundBroker
from reput_broker.config.description import config_options, describe
from reput_broker.config.errors import ConfigError
from reput_broker.config.loading import apply_live, load_config, with_values
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import AccessConfig
from reput_broker.observe.counters import Counters
from reput_client.blocking import Admin
from support.console_client import ConsoleClient
from support.scrapes import read, value
from support.tls_files import make_tls_files

HOST = "127.0.0.1"
SECRET = "a-secret-of-a-test"
TOKEN = "a-token-of-a-test-0123456789"
CANCEL = "actions/cancel-delayed"
REPLAY = "actions/replay-dead-letters"
CHANGE = {"values": {"topic": "orders", "key": "k"}, "dry_run": True}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundBroker]:
    data_dir = tmp_path_factory.mktemp("console") / "data"
    store = {"commit_log_file_size": "1MiB", "index": False}
    with BackgroundBroker(
        BrokerConfig(data_dir=data_dir, port=0, http_port=0, store=store, console={"token": TOKEN})
    ) as broker:
        yield broker


@pytest.fixture
def console(broker: BackgroundBroker) -> ConsoleClient:
    assert broker.http_address is not None
    return ConsoleClient(broker.http_address)


def test_every_answer_has_a_strict_policy(console: ConsoleClient) -> None:
    for path in ("/console/", "/console/app.js", "/console/api/topics", "/console/api/nowhere", "/console/nothing"):
        headers = console.ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


def test_the_page_is_at_the_root_and_nothing_else_of_the_disk(console: ConsoleClient) -> None:
    for path in ("/", "/console"):
        answer = console.ask("GET", path)
        assert (answer.status, answer.headers["location"]) == (307, "/console/")
    assert b"<!doctype html>" in console.ask("GET", "/console/").body
    assert console.ask("GET", "/console/style.css").headers["content-type"] == "text/css; charset=utf-8"
    for path in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "static/app.js", "/etc/passwd", "app.js%00.html"):
        assert console.ask("GET", f"/console/{path}").status == 404, path
    assert console.ask("HEAD", "/console/events").status == 200


def auth_failures(console: ConsoleClient) -> dict[str, float]:
    page = read(console.ask("GET", "/metrics").body.decode())
    return {
        reason: value(page, "reput_auth_failures_total", reason=reason)
        for reason in ("forbidden", "expired", "bad_credentials")
    }


def test_changes_need_a_login(console: ConsoleClient) -> None:
    before = auth_failures(console)
    for name, members in ((CANCEL, CHANGE), (REPLAY, {"values": {"group": "billing"}})):
        answer = console.post(name, members)
        assert (answer.status, answer.members["error"]) == (401, "log in to change something")
    console.cookie = f"reput_console_{console.address.rpartition(':')[2]}=guess"
    assert console.post(CANCEL, CHANGE).status == 401
    assert console.post("login", {"secret": TOKEN + "x"}).status == 401
    assert console.post("login", {"secret": 7}).status == 400
    answer = console.post("login", {"secret": TOKEN})
    assert answer.status == 200
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/console/" in cookie
    assert TOKEN not in cookie
    assert "secure" not in cookie, "a browser would not send it over HTTP"
    assert console.get("session")["is_logged_in"] is True
    assert console.post(CANCEL, CHANGE).status == 200
    stolen = console.cookie
    assert console.post("logout", {}).status == 200
    console.cookie = stolen
    assert console.post(CANCEL, CHANGE).status == 401
    assert {reason: count - before[reason] for reason, count in auth_failures(console).items()} == {
        "forbidden": 2, "expired": 2, "bad_credentials": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"X_Reput_Console": "0"},
    ],
)
def test_a_page_of_another_site_changes_nothing(console: ConsoleClient, headers: dict[str, str]) -> None:
    assert console.post("login", {"secret": TOKEN}).status == 200
    assert console.post(CANCEL, CHANGE, **headers).status == 403
    assert console.post("login", {"secret": TOKEN}, **headers).status == 403


def test_a_page_of_another_site_reads_nothing(console: ConsoleClient) -> None:
    for name in ("topics", "session"):
        answer = console.ask("GET", console.path(name), headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status == 403
    assert console.ask("GET", "/console/events", headers={"Sec-Fetch-Site": "cross-site"}).status == 403
    rebound = console.ask("GET", console.path("topics"), headers={"Host": "evil.example"})
    assert rebound.status == 421


def test_bodies_that_are_no_objects_are_refused(console: ConsoleClient) -> None:
    assert console.post("login", {"secret": TOKEN}).status == 200
    headers = {"X-Reput-Console": "1"}
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 60_000, b'{"topic":' * 5000):
        answer = console.ask("POST", console.path(CANCEL), body, headers)
        assert (answer.status, answer.members["error"]) == (400, "the body is not a JSON object")
    assert console.ask("POST", console.path(CANCEL), b"x" * 70_000, headers).status == 413
    assert console.ask("GET", console.path(CANCEL)).status == 404
    assert console.ask("DELETE", console.path(CANCEL)).status == 405


def test_without_a_token_nobody_logs_in(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(http_port=0)
    assert broker.http_address is not None
    console = ConsoleClient(broker.http_address)
    assert console.get("session")["can_log_in"] is False
    answer = console.post("login", {"secret": ""})
    assert answer.status == 401
    assert "REPUT_CONSOLE__TOKEN_FILE" in answer.members["remedy"]
    assert console.get("topics")["topics"] == []


def test_reading_can_need_a_login(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(http_port=0, console={"token": TOKEN, "read_without_login": False})
    assert broker.http_address is not None
    console = ConsoleClient(broker.http_address)
    for path in (console.path("topics"), console.path("body", id="x"), "/console/events"):
        assert console.ask("GET", path).status == 401
    assert console.get("session")["read_without_login"] is False
    assert console.post("login", {"secret": TOKEN}).status == 200
    assert console.get("topics")["topics"] == []


def test_it_can_be_off(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(http_port=0, console={"enabled": False})
    assert broker.http_address is not None
    console = ConsoleClient(broker.http_address)
    assert {console.ask("GET", path).status for path in ("/", "/console/", "/console/api/topics")} == {404}
    assert console.ask("GET", "/livez").status == 200


def test_the_live_numbers_go_to_a_limited_number_of_pages(console: ConsoleClient) -> None:
    host, port = console.address.split(":")
    streams = []
    try:
        for _ in range(33):
            stream = socket.create_connection((host, int(port)), timeout=30)
            streams.append(stream)
            stream.sendall(b"GET /console/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = stream.recv(100)
        assert answer.startswith(b"HTTP/1.1 503")
    finally:
        for stream in streams:
            stream.close()
    ends_at = time.monotonic() + 20
    answer = b""
    while not answer.startswith(b"HTTP/1.1 200") and time.monotonic() < ends_at:  # once the broker notices
        with socket.create_connection((host, int(port)), timeout=30) as stream:
            stream.sendall(b"GET /console/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = stream.recv(100)
    assert answer.startswith(b"HTTP/1.1 200")


def test_a_token_is_hard_to_guess_and_never_printed() -> None:
    for token in ("short", "x" * 15, "unprintable \x07 token"):
        with pytest.raises(ConfigError) as refused:
            BrokerConfig(console={"token": token})
        assert token not in str(refused.value)
    config = load_config(None, {"REPUT_CONSOLE__TOKEN": TOKEN})
    assert config.console.token == TOKEN
    assert TOKEN not in repr(config)
    with pytest.raises(ConfigError, match="no login is possible"):
        BrokerConfig(console={"read_without_login": False})


def test_administrators_do_not_get_the_token(broker: BackgroundBroker) -> None:
    with Admin(broker.address) as admin:
        options = {option.key: option for option in admin.broker_config()}
        assert (options["console.token"].value, options["console.token"].text) == ("***", '"***"')
        assert admin.set_broker_config({"shutdown_grace": "19s"})[0].after == '"19s"'
    config = load_config(None, {"REPUT_CONSOLE__TOKEN": TOKEN})
    (change,) = apply_live(config, load_config(None, {"REPUT_CONSOLE__TOKEN": TOKEN + "2"}))
    assert (change.before, change.after) == ('"***"', '"***"')
    assert TOKEN not in str(config_options(config)) + str(describe(config))
    assert with_values(config, {"shutdown_grace": "1s"}).console.token == TOKEN


def test_logins_end_by_themselves_and_are_limited(tmp_path: Path) -> None:
    now = 0.0
    logins = Logins(TOKEN, clock=lambda: now)
    first = logins.begin("", TOKEN, HOST)
    assert logins.is_valid(first)
    assert logins.begin("", TOKEN[:-1], HOST) is None
    assert logins.begin("", "\ud800", HOST) is None
    others = [logins.begin("", TOKEN, HOST) for _ in range(255)]
    assert logins.is_valid(first)
    others.append(logins.begin("", TOKEN, HOST))
    assert not logins.is_valid(first)
    assert all(map(logins.is_valid, others))
    of_users = Logins("", _access(tmp_path, "alice", "bob"))
    first, other, *_ = [of_users.begin(name, SECRET, HOST) for name in ("alice", "bob", *["alice"] * 8)]
    assert (of_users.is_valid(first), of_users.is_valid(other)) == (False, True)
    now = LASTS_S
    assert not any(map(logins.is_valid, others))
    assert Logins("").begin("", "", HOST) is None


def test_a_secret_can_be_tried_a_few_times_only(tmp_path: Path) -> None:
    """Also the right one waits then; other users and other addresses do not."""
    now = 0.0
    access = _access(tmp_path, "alice", "bob")
    access.attempts = Attempts(lambda: now)
    logins = Logins("", access, lambda: now)
    for _ in range(5):
        assert logins.begin("alice", "wrong", HOST) is None
        now += 1
    with pytest.raises(TooManyAttempts, match="wait 295 s"):
        logins.begin("alice", SECRET, HOST)
    assert logins.begin("bob", SECRET, HOST)
    assert logins.begin("alice", SECRET, "10.1.1.1")
    now = 300.0
    assert logins.begin("alice", SECRET, HOST)
    for number in range(50):
        logins.begin(f"user-{number}", "wrong", "2001:db8::1")
    for host in ("2001:db8::1", "2001:db8::ffff"):
        with pytest.raises(TooManyAttempts):
            logins.begin("bob", SECRET, host)
    assert logins.begin("bob", SECRET, "2001:db8:1::1")


def test_a_login_ends_with_its_users_secret_and_its_user(tmp_path: Path) -> None:
    access = _access(tmp_path, "alice", "bob")
    logins = Logins("", access)
    alice, bob = (logins.begin(name, SECRET, HOST) for name in ("alice", "bob"))
    found = logins.account(alice, HOST)
    assert found is not None
    assert found.name == "alice"
    assert logins.account("guess", HOST) is None
    access.change(lambda users: users.with_user(User("alice", SECRET + "2")))
    assert logins.account(alice, HOST) is None
    access.change(lambda users: users.without_user("bob"))
    assert logins.account(bob, HOST) is None
    access.change(lambda users: users.with_user(User("bob", SECRET)))
    assert logins.account(bob, HOST) is None, "it has ended"


def _access(directory: Path, *names: str) -> AccessControl:
    """Return the access control of users with one secret."""

    def with_names(users: Users) -> Users:
        for name in names:
            users = users.with_user(User(name, SECRET))
        return users

    file = UserFile(directory / "users.json")
    file.change(with_names)
    users, seen = file.read()
    return AccessControl(file, users, seen, AccessConfig(), Counters())


def test_with_tls_the_cookie_of_a_login_travels_encrypted_only(tmp_path: Path) -> None:
    files = make_tls_files(tmp_path)
    config = BrokerConfig(
        data_dir=tmp_path / "data",
        port=0,
        http_port=0,
        tls={"http_mode": "required", "cert": str(files.broker)},
        store={"commit_log_file_size": "1MiB", "index": False},
        console={"token": TOKEN},
    )
    with BackgroundBroker(config) as broker:
        address = broker.http_address or ""
        context = ssl.create_default_context(cafile=str(files.ca))
        connection = HTTPSConnection(address, timeout=30, context=context)
        headers = {
            "Content-Type": "application/json",
            "X-Reput-Console": "1",
            "Origin": f"https://{address}",
            "Sec-Fetch-Site": "same-origin",
        }
        connection.request("POST", "/console/api/login", json.dumps({"secret": TOKEN}), headers)
        answer = connection.getresponse()
        assert answer.status == 200
        assert "; secure" in (answer.headers["set-cookie"] or "").lower()
        connection.close()
