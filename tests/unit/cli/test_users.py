"""`reput user`, `reput acl`, and the user of a command."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reput_broker.access.model import Kind, Need, Right
from reput_broker.access.user_file import UserFile
from reput_cli import acl, user
from reput_cli.failures import CommandFailed
from reput_cli.secret import use_user
from reput_client.credentials import Credentials, from_environment

SECRET = "a-secret-of-alice"


@pytest.fixture
def file(tmp_path: Path) -> UserFile:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return UserFile(tmp_path / "users.json")


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPUT_USER", "REPUT_SECRET", "REPUT_SECRET_FILE"):
        monkeypatch.setenv(name, "")  # so that what a test sets is undone


def run(group: str, file: UserFile, *arguments: str) -> Result:
    command = {"user": user.command, "acl": acl.command}[group]
    return CliRunner().invoke(
        command, [*arguments, "--file", str(file.path)], catch_exceptions=False, standalone_mode=False
    )


def test_users_and_rules_are_made_listed_and_removed(file: UserFile, tmp_path: Path) -> None:
    run("user", file, "create", "alice", "--secret-file", str(tmp_path / "secret"))
    run("user", file, "create", "root", "--admin", "--generate", str(tmp_path / "root"))
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o600
    run("acl", file, "allow", "alice", "read,write", "topic:a*", "topic:b")
    run("acl", file, "allow", "alice", "admin", "topic:a*")
    run("acl", file, "deny", "alice", "write", "topic:b")
    run("acl", file, "allow", "@ops", "describe", "cluster")
    run("user", file, "alter", "alice", "--group", "ops")
    users = file.load()
    alice = users.users["alice"]
    assert (alice.secret, alice.groups, len(users.rules_of(alice))) == (SECRET, ("ops",), 4)
    found = {(rule.resource, rule.is_denial): set(rule.rights) for rule in alice.rules}
    assert found["topic:a*", False] == {Right.READ, Right.WRITE, Right.ADMIN}
    assert found["topic:b", False] == {Right.READ}
    assert found["topic:b", True] == {Right.WRITE}
    listed = run("user", file, "list", "-O", "json").output
    assert {row["user"]: row["admin"] for row in json.loads(listed)} == {"alice": False, "root": True}
    assert SECRET not in listed
    assert "topic:b" in run("acl", file, "list", "alice", "-O", "json").output
    run("acl", file, "remove", "alice", "topic:b")
    run("user", file, "alter", "alice", "--disable", "--no-groups")
    run("acl", file, "remove", "@ops")
    run("user", file, "delete", "root")
    users = file.load()
    assert list(users.users) == ["alice"]
    assert not users.groups
    assert not users.users["alice"].is_enabled
    assert [rule.resource for rule in users.users["alice"].rules] == ["topic:a*"]
    assert Need(Right.READ, Kind.TOPIC, "x").resource == "topic:x"


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
    ],
)
def test_a_mistake_changes_nothing(file: UserFile, group: str, arguments: list[str], says: str) -> None:
    with pytest.raises(CommandFailed, match=says):
        run(group, file, *arguments)
    assert not file.path.exists()


@pytest.mark.usefixtures("environ")
def test_the_option_precedes_the_environment_and_that_the_context(
    file: UserFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = str(tmp_path / "secret")
    context = {"user": "of-context", "secret_file": secret}
    use_user(None, None, {})
    assert from_environment() is None
    use_user(None, None, context)
    assert from_environment() == Credentials("of-context", SECRET)
    monkeypatch.setenv("REPUT_USER", "of-environment")
    monkeypatch.setenv("REPUT_SECRET_FILE", "")
    monkeypatch.setenv("REPUT_SECRET", "secret-of-environment")
    use_user(None, None, context)
    assert from_environment() == Credentials("of-environment", "secret-of-environment")
    use_user("alice", secret, context)
    assert from_environment() == Credentials("alice", SECRET)


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize("user_name", ["alice", None])
def test_a_user_without_a_secret_and_the_reverse_are_refused(user_name: str | None, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed):
        use_user(user_name, None if user_name else str(tmp_path / "secret"), {})
    os.environ["REPUT_SECRET_FILE"] = str(tmp_path / "absent")
    with pytest.raises(CommandFailed, match="absent"):
        use_user("alice", None, {})
