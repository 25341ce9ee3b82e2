"""The file with the users: who may read it, what it accepts, and what a start makes of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from reput_broker.access.control import AccessControl, InsecureAccess, NoUsers, open_access
from reput_broker.access.model import User, Users
from reput_broker.access.user_file import UserFile, UserFileRefused, decode_users, encode_users
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_protocol.rights import rule_of

SECRET = "a-secret-of-alice"
ALICE = User(
    "alice",
    SECRET,
    is_enabled=False,
    groups=("ops",),
    rules=(
        rule_of("topic:a*", ["read", "write"]),
        rule_of("group:g", ["read"], is_denial=True, sources=["10.0.0.0/8"]),
    ),
)
USERS = Users({"alice": ALICE, "root": User("root", SECRET, is_admin=True)}, {"ops": (rule_of("cluster", ["admin"]),)})


def test_what_is_written_is_read_and_only_the_owner_may_read_it(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "access" / "users.json")
    assert file.load() == Users()
    before = file.state()
    assert file.change(lambda _: USERS) == USERS
    assert file.load() == USERS == decode_users(encode_users(USERS))
    assert file.state() != before
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
def test_what_root_changes_stays_readable_for_the_broker(tmp_path: Path) -> None:
    """On a machine with systemd, root runs `reput user`, and the broker has a user of its own."""
    os.chown(tmp_path, 10001, 10002)
    file = UserFile(tmp_path / "access" / "users.json")
    file.change(lambda _: USERS)
    file.change(lambda _: USERS)
    made = [file.path.parent, *file.path.parent.iterdir()]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(10001, 10002)}


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o620, 0o602])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = UserFile(tmp_path / "users.json")
    file.change(lambda _: USERS)
    file.path.chmod(mode)
    with pytest.raises(UserFileRefused, match=f"{mode:04o}.*chmod 600"):
        file.load()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a table"),
        (b"\xff", "not UTF-8"),
        (b"{}", "version"),
        (b'{"version": 2}', "version"),
        (b'{"version": 1, "users": {"a": {"secret": "12345678", "admni": true}}}', "admni"),
        (b'{"version": 1, "users": {"a": {"secret": "1234567"}}}', "8 to 256"),
        (b'{"version": 1, "users": {"a": {"secret": "12345678", "admin": 1}}}', "wrong type"),
        (b'{"version": 1, "users": {"a b": {"secret": "12345678"}}}', "' '"),
        (b'{"version": 1, "users": {"a": {"secret": "12345678", "groups": ["x"]}}}', "'x'"),
        (b'{"version": 1, "users": {"a": {"secret": "12345678"}, "a": {"secret": "12345678"}}}', "twice"),
        (b'{"version": 1, "groups": {"g": [{"resource": "topic:t", "rights": ["fly"]}]}}', "fly"),
        (b'{"version": 1, "groups": {"g": [{"resource": "topic:t", "rights": ["read"], "sources": [1]}]}}', "text"),
    ],
)
def test_a_file_with_a_mistake_is_refused_without_its_secrets(tmp_path: Path, text: bytes, says: str) -> None:
    file = UserFile(tmp_path / "users.json")
    file.path.write_bytes(text)
    file.path.chmod(0o600)
    with pytest.raises(UserFileRefused, match=says) as refused:
        file.load()
    assert "1234567" not in str(refused.value)


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "users.json")
    file.change(lambda _: USERS)
    with pytest.raises(ValueError, match="ops"):
        file.change(lambda users: users.without_group("ops"))
    assert file.load() == USERS


def opened(root: Path, **access: object) -> AccessControl | InsecureAccess | None:
    return open_access(BrokerConfig(data_dir=root, access=access), Counters())


def test_access_control_needs_a_user(tmp_path: Path) -> None:
    assert opened(tmp_path) is None
    with pytest.raises(NoUsers, match=r"ADMIN_SECRET_FILE.*reput user create"):
        opened(tmp_path, enabled=True)
    configured = opened(tmp_path, enabled=True, admin_user="boss", admin_secret=SECRET)
    assert isinstance(configured, AccessControl)
    assert configured.user_names == ("boss",)
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "users.json"
    UserFile(file).change(lambda _: Users({"alice": User("alice", SECRET, is_enabled=False)}))
    with pytest.raises(NoUsers):
        opened(tmp_path, enabled=True, generate_admin=True, file=str(file))


def test_a_generated_secret_is_only_in_two_files_of_the_owner(tmp_path: Path) -> None:
    opened(tmp_path, enabled=True, generate_admin=True)
    made = opened(tmp_path, enabled=True, generate_admin=True)  # a second start keeps it
    assert isinstance(made, AccessControl)
    secret = tmp_path / "access" / "admin.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    account = made.check_password("admin", secret.read_text().strip(), "127.0.0.1")
    assert account is not None
    assert account.is_admin
    assert made.check_password("admin", secret.read_text(), "127.0.0.1") is None


def test_without_it_other_machines_administer_nothing(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, host="0.0.0.0", allow_insecure=True)
    assert isinstance(open_access(config, Counters()), InsecureAccess)
