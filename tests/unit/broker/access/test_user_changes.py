"""Changes of users by requests and by other processes, in every order with the broker's look at the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from reput_broker.access import user_file
from reput_broker.access.control import AccessControl
from reput_broker.access.model import User, Users, with_altered_user, with_new_user
from reput_broker.access.user_file import FileState, UserFile, UserFileRefused
from reput_broker.config.sections import AccessConfig
from reput_broker.observe.counters import Counters

ALICE: Final = User("alice", "the-secret-of-alice")
BOB: Final = User("bob", "the-secret-of-bob")


class Interrupted(UserFile):
    """A file during whose reading something happens: after its bytes are read, and before they are used."""

    meanwhile: Callable[[], object] | None = None

    def read(self) -> tuple[Users, FileState]:
        found = super().read()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


@pytest.fixture
def file(tmp_path: Path) -> Interrupted:
    file = Interrupted(tmp_path / "users.json")
    file.change(lambda users: users.with_user(ALICE))
    return file


@pytest.fixture
def access(file: Interrupted) -> AccessControl:
    users, seen = file.read()
    return AccessControl(file, users, seen, AccessConfig(), Counters())


def of_another_process(path: Path, change: Callable[[Users], Users]) -> None:
    UserFile(path).change(change)


def test_a_change_of_another_process_is_read(file: Interrupted, access: AccessControl) -> None:
    assert not access.refresh()
    of_another_process(file.path, lambda users: users.with_user(BOB))
    assert access.refresh()
    assert set(access.user_names) == {"alice", "bob"}
    assert not access.refresh()


@pytest.mark.parametrize("is_deleted", [True, False])
def test_an_older_file_does_not_override_a_change(file: Interrupted, access: AccessControl, is_deleted: bool) -> None:
    """A deleted user was served, and a new one refused, until the file was read once more."""

    def change(users: Users) -> Users:
        return users.without_user("alice") if is_deleted else users.with_user(BOB)

    of_another_process(file.path, lambda users: users.with_user(User("carol", "the-secret-of-carol")))
    file.meanwhile = lambda: access.change(change)
    access.refresh()
    assert set(access.user_names) == {"carol", *(() if is_deleted else ("alice", "bob"))}
    assert not access.refresh(), "it is up to date"


def test_what_is_replaced_while_it_is_read_is_read_again(file: Interrupted, access: AccessControl) -> None:
    of_another_process(file.path, lambda users: users.with_user(BOB))
    file.meanwhile = lambda: of_another_process(file.path, lambda users: users.without_user("alice"))
    assert not access.refresh()
    assert access.refresh()
    assert access.user_names == ("bob",)


def test_a_damaged_file_is_reported_once(file: Interrupted, access: AccessControl) -> None:
    file.path.write_text("{")
    with pytest.raises(UserFileRefused):
        access.refresh()
    assert not access.refresh()
    assert access.user_names == ("alice",)


def test_a_change_keeps_what_other_processes_have_changed(file: Interrupted, access: AccessControl) -> None:
    of_another_process(file.path, lambda users: users.without_user("alice"))
    access.change(lambda users: users.with_user(BOB))
    assert access.user_names == ("bob",)


def test_accounts_of_unchanged_users_stay(access: AccessControl) -> None:
    before = access.account("alice", "10.0.0.1")
    access.change(lambda users: users.with_user(BOB))
    assert access.account("alice", "10.0.0.1") is before


def test_a_new_secret_is_long_and_an_old_one_keeps_working(
    file: Interrupted, access: AccessControl, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="16 to 256 printable"):
        access.change(lambda users: with_new_user(users, User("bob", "8-letter")))
    with pytest.raises(ValueError, match="16 to 256 printable"):
        access.change(lambda users: with_altered_user(users, "alice", secret="8-letter"))
    assert "short_secrets" not in capsys.readouterr().out
    of_another_process(file.path, lambda users: users.with_user(User("old", "8-letter")))
    access.refresh()
    assert "old" in access.user_names
    warning = capsys.readouterr().out
    assert "short_secrets" in warning
    assert "8-letter" not in warning
    access.change(lambda users: with_altered_user(users, "old", is_admin=True))
    assert "short_secrets" not in capsys.readouterr().out, "it is said once"


def test_a_change_decodes_and_encodes_what_has_changed_only(
    file: Interrupted, access: AccessControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    access.change(lambda users: users.with_user(User("carol", "the-secret-of-carol")))
    encoded: list[str] = []
    encode = user_file._encoded_user

    def noting(user: User) -> bytes:
        encoded.append(user.name)
        return encode(user)

    monkeypatch.setattr(user_file, "_encoded_user", noting)
    monkeypatch.setattr(user_file, "decode_users", lambda _: pytest.fail("its users are known"))
    access.change(lambda users: users.with_user(BOB))
    assert encoded == ["bob"]
    monkeypatch.undo()
    assert UserFile(file.path).load() == file.load()
