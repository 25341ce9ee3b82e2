"""`reput user`, `reput acl`, and the user of a command."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner, Result

from reput_broker.access.control import user_file_of
from reput_broker.access.model import User
from reput_broker.access.user_file import UserFile
from reput_broker.background import BackgroundBroker
from reput_cli import acl, topic, user
from reput_cli.connection import put_user_into_environment
from reput_cli.failures import CommandFailed
from reput_client.blocking import Admin
from reput_client.errors import BrokersFailed
from reput_client.security import Credentials, from_environment
from reput_protocol.rights import Right, rule_of

SECRET = "a-secret-of-alice"


@pytest.fixture
def secret_file(tmp_path: Path) -> str:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return str(tmp_path / "secret")


@pytest.fixture
def file(tmp_path: Path) -> UserFile:
    return UserFile(tmp_path / "users.json")


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPUT_USER", "REPUT_SECRET", "REPUT_SECRET_FILE"):
        monkeypatch.setenv(name, "")  # so that what a test sets is undone


@dataclass
class Users:
    """Users at a place, and the commands about them."""

    place: tuple[str, ...]
    files: list[UserFile]

    def run(self, group: str, *arguments: str) -> Result:
        command = {"user": user.command, "acl": acl.command}[group]
        return CliRunner().invoke(command, [*arguments, *self.place], catch_exceptions=False, standalone_mode=False)


NewBroker = Callable[..., BackgroundBroker]


@pytest.fixture
def cluster(environ: None, new_reput_broker: NewBroker, monkeypatch: pytest.MonkeyPatch) -> Users:
    """Two brokers, the second registered with the first."""
    access = {"enabled": True, "admin_secret": "secret-of-the-administrator"}
    first = new_reput_broker(access=access)
    second = new_reput_broker(broker_name="broker-b", name_servers=[first.address], access=access)
    monkeypatch.setenv("REPUT_USER", "admin")
    monkeypatch.setenv("REPUT_SECRET", "secret-of-the-administrator")
    with Admin(first.address) as admin:
        while len(admin.cluster_info().masters) < 2:
            time.sleep(0.02)
    files = [user_file_of(broker.config) for broker in (first, second)]
    return Users(("--server", first.address), files)


@pytest.fixture(params=["file", "brokers"])
def users(request: pytest.FixtureRequest, file: UserFile) -> Users:
    if request.param == "file":
        return Users(("--file", str(file.path)), [file])
    found: Users = request.getfixturevalue("cluster")
    return found


def test_users_and_rules_are_made_listed_and_removed(users: Users, secret_file: str, tmp_path: Path) -> None:
    run = users.run
    run("user", "create", "alice", "--new-secret-file", secret_file)
    run("user", "create", "root", "--admin", "--generate", str(tmp_path / "root"))
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o600
    run("acl", "allow", "alice", "read,write", "topic:a*", "topic:b")
    run("acl", "allow", "alice", "admin", "topic:a*")
    run("acl", "deny", "alice", "write", "topic:b")
    run("acl", "allow", "alice", "admin", "topic:a*", "--from", "10.0.0.0/8", "--from", "::1")
    run("acl", "allow", "@ops", "describe,replicate", "cluster")
    run("user", "alter", "alice", "--group", "ops")
    for file in users.files:
        stored = file.load()
        alice = stored.users["alice"]
        assert (alice.secret, alice.groups, len(stored.rules_of(alice))) == (SECRET, ("ops",), 5)
        found = {(rule.resource, rule.is_denial, len(rule.sources)): {*rule.rights} for rule in alice.rules}
        assert found == {
            ("topic:a*", False, 0): {Right.READ, Right.WRITE, Right.ADMIN},
            ("topic:a*", False, 2): {Right.ADMIN},
            ("topic:b", False, 0): {Right.READ},
            ("topic:b", True, 0): {Right.WRITE},
        }
        assert stored.groups["ops"] == (rule_of("cluster", ["describe", "replicate"]),)
        assert stored.users["root"].secret == (tmp_path / "root").read_text().strip()
    listed = run("user", "list", "-O", "json").output
    rows = {row["user"]: (row["admin"], row["rules"]) for row in json.loads(listed)}
    rows.pop("admin", None)  # that of the configuration
    assert rows == {"alice": (False, 5), "root": (True, 0)}
    assert SECRET not in listed
    rules = json.loads(run("acl", "list", "alice", "-O", "json").output)
    assert {"topic:b", "topic:a*"} == {rule["resource"] for rule in rules}
    assert {rule["from"] for rule in rules} == {None, "10.0.0.0/8 ::1/128"}
    run("acl", "remove", "alice", "topic:b")
    run("user", "alter", "alice", "--disable", "--no-groups", "--generate", str(tmp_path / "alice"))
    run("acl", "remove", "@ops")
    run("user", "delete", "root")
    for file in users.files:
        stored = file.load()
        assert list(stored.users) == ["alice"]
        assert not stored.groups
        alice = stored.users["alice"]
        assert (alice.is_enabled, alice.secret) == (False, (tmp_path / "alice").read_text().strip())
        assert {rule.resource for rule in alice.rules} == {"topic:a*"}


def test_a_creation_that_reached_one_broker_is_completed_by_another(cluster: Users, secret_file: str) -> None:
    first, second = cluster.files
    second.change(lambda users: users.with_user(User("alice", "another-secret", is_enabled=False)))
    shown = cluster.run("user", "list")
    assert "alice is missing or differs at broker-a" in shown.stderr
    cluster.run("user", "create", "alice", "--new-secret-file", secret_file)
    assert first.load().users["alice"] == User("alice", SECRET)
    assert second.load().users["alice"] == User("alice", SECRET, is_enabled=False)
    cluster.run("user", "alter", "alice", "--enable")
    assert "missing" not in cluster.run("user", "list").stderr
    with pytest.raises(CommandFailed, match="already"):
        cluster.run("user", "create", "alice", "--new-secret-file", secret_file)


def test_rules_that_reached_one_broker_are_completed_and_removed_by_another_command(
    cluster: Users, secret_file: str
) -> None:
    cluster.run("user", "create", "alice", "--new-secret-file", secret_file)
    cluster.run("acl", "allow", "alice", "read", "topic:t")
    read = (rule_of("topic:t", ["read"]),)
    for number in (0, 1):
        broker = cluster.files[number]
        broker.change(lambda users: users.with_user(User("alice", SECRET)))
        cluster.run("acl", "allow", "alice", "read", "topic:t")
        assert broker.load().users["alice"].rules == read
    for number in (0, 1):
        for each, file in enumerate(cluster.files):
            rules = read if each == number else ()
            file.change(lambda users, own=rules: users.with_user(User("alice", SECRET, rules=own)))  # type: ignore[misc]
        cluster.run("acl", "remove", "alice", "topic:t")
        assert not any(file.load().users["alice"].rules for file in cluster.files)


def test_topics_that_a_user_may_not_see_are_left_out_of_a_list(
    cluster: Users, secret_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = cluster.place[1]
    with Admin(server) as admin:
        admin.create_topic("orders")
        admin.create_topic("salaries")
    cluster.run("user", "create", "alice", "--new-secret-file", secret_file)
    cluster.run("acl", "allow", "alice", "describe", "cluster", "topic:orders")
    monkeypatch.setenv("REPUT_USER", "alice")
    monkeypatch.setenv("REPUT_SECRET", SECRET)
    listed = CliRunner().invoke(topic.command, ["list", "--server", server], standalone_mode=False)
    assert "orders" in listed.stdout
    assert "salaries" not in listed.output
    assert "left out: 1 topic, on which the user lacks the right 'describe'" in listed.stderr
    with Admin(server) as admin, pytest.raises(BrokersFailed, match="reput acl allow alice describe group:billing"):
        admin.topic_configs("%RETRY%billing")


def test_a_refused_change_at_a_broker_leaves_nothing(cluster: Users, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="there is no group of rules 'nobody'"):
        cluster.run("user", "create", "bob", "--group", "nobody", "--generate", str(tmp_path / "bob"))
    with pytest.raises(BrokersFailed, match=r"administrator of the configuration \(access.admin_user\)"):
        cluster.run("user", "alter", "admin", "--generate", str(tmp_path / "other"))
    assert not any(path.exists() for path in (tmp_path / "bob", tmp_path / "other"))
    assert not any(file.path.exists() for file in cluster.files)


def test_a_broker_without_access_control_says_so(environ: None, new_reput_broker: NewBroker) -> None:
    users = Users(("--server", new_reput_broker().address), [])
    for group, arguments in (("user", ["list"]), ("acl", ["allow", "@ops", "read", "topic:t"])):
        with pytest.raises(CommandFailed, match=r"access control is off \(access.enabled\)") as caught:
            users.run(group, *arguments)
        assert caught.value.remedy is not None
        assert caught.value.remedy.startswith("access.enabled = true")


def test_a_file_and_a_broker_exclude_each_other(file: UserFile) -> None:
    with pytest.raises(UsageError, match="leave out --server"):
        Users(("--file", str(file.path)), []).run("user", "list", "--server", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("group", "arguments", "says"),
    [
        ("user", ["create", "bob"], "no terminal"),
        ("user", ["create", "a b", "--generate", "x"], "' '"),
        ("user", ["alter", "bob", "--disable"], "no user 'bob'"),
        ("user", ["delete", "bob"], "no user 'bob'"),
        ("acl", ["allow", "bob", "read", "topic:t"], "no user 'bob'"),
        ("acl", ["list", "@ops"], "no group of rules 'ops'"),
        ("acl", ["allow", "@ops", "fly", "topic:t"], "fly"),
        ("acl", ["allow", "@ops", "read", "queue:t"], "not a resource"),
        ("acl", ["remove", "@ops", "topic:t"], "no group of rules 'ops'"),
        ("acl", ["allow", "@ops", "read", "topic:t", "--from", "home"], "'home' does not appear"),
    ],
)
def test_a_mistake_changes_nothing(file: UserFile, group: str, arguments: list[str], says: str) -> None:
    with pytest.raises(CommandFailed, match=says):
        Users(("--file", str(file.path)), [file]).run(group, *arguments)
    assert not file.path.exists()


@pytest.mark.usefixtures("environ")
def test_the_option_precedes_the_environment_and_that_the_context(
    secret_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = secret_file
    context = {"user": "of-context", "secret_file": secret}
    put_user_into_environment(None, None, {})
    assert from_environment() is None
    put_user_into_environment(None, None, context)
    assert from_environment() == Credentials("of-context", SECRET)
    monkeypatch.setenv("REPUT_USER", "of-environment")
    monkeypatch.setenv("REPUT_SECRET_FILE", "")
    monkeypatch.setenv("REPUT_SECRET", "secret-of-environment")
    put_user_into_environment(None, None, context)
    assert from_environment() == Credentials("of-environment", "secret-of-environment")
    put_user_into_environment("alice", secret, context)
    assert from_environment() == Credentials("alice", SECRET)


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize("user_name", ["alice", None])
def test_a_user_without_a_secret_and_the_reverse_are_refused(user_name: str | None, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed):
        put_user_into_environment(user_name, None if user_name else str(tmp_path / "secret"), {})
    os.environ["REPUT_SECRET_FILE"] = str(tmp_path / "absent")
    with pytest.raises(CommandFailed, match="absent"):
        put_user_into_environment("alice", None, {})
