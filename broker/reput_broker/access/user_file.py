"""The file with the users and their rules, written by `reput user` and `reput acl`; brokers read it when it changes.

    {"version": 1,
     "users": {"alice": {"secret": "...", "admin": false, "enabled": true, "groups": ["billing"],
                         "rules": [{"resource": "topic:orders*", "rights": ["read", "write"]}]}},
     "groups": {"billing": [{"resource": "group:billing*", "rights": ["read"]}]}}

A rule with `"deny": true` denies, and one with `"sources": ["10.0.0.0/8"]` concerns requests of these addresses only.
The secrets are stored as they are, because a signature can only be checked with the secret itself; so the file has mode
0600, and one that others may read is refused.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from reput_broker.access.model import User, Users
from reput_broker.store.base.file_io import sync_names
from reput_protocol.errors import ReputError
from reput_protocol.rights import Rule, rule_of

_VERSION: Final = 1
_READ_BY_OTHERS: Final = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP
_BYTES_MAX: Final = 64 << 20


class UserFileRefused(ReputError):
    """The file with the users cannot be used; nothing was changed.

    Attributes:
        path: the file.
        reason: why, without any secret.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be used: {reason}")
        self.path = path
        self.reason = reason


class FileState(NamedTuple):
    """What changes when the file is written; compared to notice that."""

    inode: int
    size: int
    changed_ns: int


_NO_FILE: Final = FileState(0, 0, 0)


def _state_of(found: os.stat_result) -> FileState:
    return FileState(found.st_ino, found.st_size, found.st_mtime_ns)


class UserFile:
    """The file. Its methods block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last = Users(), _NO_FILE
        """The users that were read or written last, and the state of the file then."""
        self._texts: dict[str, tuple[User, bytes]] = {}
        """The texts of the users that were written last."""

    def state(self) -> FileState:
        """Return what is compared to notice that another process has written it. Raises UserFileRefused."""
        try:
            return _state_of(self.path.stat())
        except FileNotFoundError:
            return _NO_FILE
        except OSError as error:
            raise self._unreadable(error) from error

    def load(self) -> Users:
        """Return the users; none if there is no file. Raises UserFileRefused."""
        return self.read()[0]

    def read(self) -> tuple[Users, FileState]:
        """Return the users, and the state of the file with them. They are decoded only if the file has changed.

        Raises:
            UserFileRefused: users other than the owner may read or change it, or it is not valid.
        """
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                state, mode = _state_of(found), stat.S_IMODE(found.st_mode)
                users, known = self._last
                data = b"" if state == known else file.read(_BYTES_MAX + 1)
        except FileNotFoundError:
            return Users(), _NO_FILE
        except OSError as error:
            raise self._unreadable(error) from error
        if mode & _READ_BY_OTHERS:
            raise UserFileRefused(self.path, f"its mode is {mode:04o}, and it has secrets; run chmod 600 {self.path}")
        if len(data) > _BYTES_MAX:
            raise UserFileRefused(self.path, f"it has more than {_BYTES_MAX} bytes")
        if state != known:
            try:
                users = decode_users(data)
            except ValueError as error:
                raise UserFileRefused(self.path, str(error)) from None
            self._last = users, state
        return users, state

    def change(
        self,
        change: Callable[[Users], Users],
        *,
        apply: Callable[[Users, FileState], None] = lambda _users, _state: None,
    ) -> Users:
        """Replace the file by what `change` makes of its users, and return that.

        The new file has mode 0600 and is on disk before it takes the old one's name. Others that change it wait, also
        while `apply` is called with the new users and the new state of the file. What root creates gets the owner of
        the directory that it is in, so that the broker can read it.

        Raises:
            UserFileRefused: the file cannot be read or written. Errors of `change` are raised as they are. Nothing was
                changed.
        """
        with self._locked():
            users = change(self.load())
            fresh = self.path.with_name(f"{self.path.name}.tmp")
            try:
                fresh.unlink(missing_ok=True)
                self._texts = encoded_users(users, self._texts)
                write_private(fresh, encode_users(users, self._texts))
                state = _state_of(fresh.stat())
                fresh.replace(self.path)
                sync_names(self.path.parent)
            except OSError as error:
                raise UserFileRefused(self.path, f"it cannot be written: {error.strerror}") from error
            self._last = users, state
            apply(users, state)
            return users

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self.path.with_name(f"{self.path.name}.lock")
        directory = self.path.parent
        try:
            if not directory.exists():
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                made = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    _leave_to_owner(made, directory)
                finally:
                    os.close(made)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            _leave_to_owner(fd, lock)
        except OSError as error:
            raise UserFileRefused(self.path, f"it cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _unreadable(self, error: OSError) -> UserFileRefused:
        return UserFileRefused(self.path, f"it cannot be read: {error.strerror}")


def write_private(path: Path, data: bytes) -> None:
    """Create a file that only its owner may read, and sync it. Raises OSError; FileExistsError if it exists.

    What root creates gets the owner of its directory.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        _leave_to_owner(fd, path)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _leave_to_owner(fd: int, path: Path) -> None:
    """As root, give an open file of root's to the owner of its directory. Raises OSError."""
    # A file with another name belongs elsewhere too: the owner of the directory may have linked it here.
    found = os.fstat(fd)
    if os.geteuid() == found.st_uid == 0 and (found.st_nlink == 1 or stat.S_ISDIR(found.st_mode)):
        owner = path.parent.stat()
        os.fchown(fd, owner.st_uid, owner.st_gid)


# -- the text ------------------------------------------------------------------------------------------------


def encode_users(users: Users, texts: Mapping[str, tuple[User, bytes]] | None = None) -> bytes:
    """Return the text of the file. `texts`: of users, by name, that were encoded before."""
    texts = encoded_users(users, {}) if texts is None else texts
    of_groups = [_member(name, [_rule_members(rule) for rule in rules]) for name, rules in users.groups.items()]
    return b'{\n "version": %d,\n "users": {\n%b\n },\n "groups": {\n%b\n }\n}\n' % (
        _VERSION,
        b",\n".join([text for _, text in texts.values()]),
        b",\n".join(of_groups),
    )


def encoded_users(users: Users, before: Mapping[str, tuple[User, bytes]]) -> dict[str, tuple[User, bytes]]:
    """Return the text of each user; those that have not changed are encoded in `before`."""
    found = {}
    for name, user in users.users.items():
        known = before.get(name)
        found[name] = known if known is not None and known[0] is user else (user, _encoded_user(user))
    return found


def _encoded_user(user: User) -> bytes:
    members = {
        "secret": user.secret,
        "admin": user.is_admin,
        "enabled": user.is_enabled,
        "groups": list(user.groups),
        "rules": [_rule_members(rule) for rule in user.rules],
    }
    return _member(user.name, members)


def _member(name: str, value: Any) -> bytes:
    """Return the text of one member of a table that is a member of the file."""
    text = msgspec.json.format(msgspec.json.encode({name: value}), indent=1)
    return text[1:-2].replace(b"\n", b"\n ")[1:]


def _rule_members(rule: Rule) -> dict[str, Any]:
    members: dict[str, Any] = {"resource": rule.resource, "rights": sorted(rule.rights)}
    if rule.is_denial:
        members["deny"] = True
    if rule.sources:
        members["sources"] = [str(source) for source in rule.sources]
    return members


def decode_users(data: bytes) -> Users:
    """Read the text of the file. Raises ValueError, which names the place and shows no secret."""
    try:
        members = json.loads(data, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON (line {error.lineno}, column {error.colno})") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    table = _members(members, "the file", {"version": int, "users": dict, "groups": dict})
    if table.get("version") != _VERSION:
        raise ValueError(f"its version is not {_VERSION}; it is from another version of Reput")
    groups = {name: _rules(rules, f"group {name!r}") for name, rules in table.get("groups", {}).items()}
    users = {name: _user(name, found) for name, found in table.get("users", {}).items()}
    return Users(users, groups)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice in one of its tables")
    return members


def _user(name: str, found: Any) -> User:
    where = f"user {name!r}"
    kinds = {"secret": str, "admin": bool, "enabled": bool, "groups": list, "rules": list}
    members = _members(found, where, kinds)
    groups = members.get("groups", [])
    if not all(isinstance(group, str) for group in groups):
        raise ValueError(f"groups of {where} is not a list of names")
    try:
        return User(
            name,
            members.get("secret", ""),
            members.get("admin", False),
            members.get("enabled", True),
            tuple(groups),
            _rules(members.get("rules", []), where),
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _rules(found: Any, where: str) -> tuple[Rule, ...]:
    if not isinstance(found, list):
        raise ValueError(f"rules of {where} are not a list")
    rules = []
    for position, rule in enumerate(found):
        place = f"rule {position} of {where}"
        members = _members(rule, place, {"resource": str, "rights": list, "deny": bool, "sources": list})
        if not all(isinstance(text, str) for text in (*members.get("rights", []), *members.get("sources", []))):
            raise ValueError(f"{place}: its rights and sources are lists of text")
        try:
            rules.append(
                rule_of(
                    members.get("resource", ""),
                    members.get("rights", []),
                    is_denial=members.get("deny", False),
                    sources=members.get("sources", []),
                )
            )
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
    return tuple(rules)


def _members(found: Any, where: str, kinds: dict[str, type]) -> dict[str, Any]:
    """Return the members of a table if they are known and of their type."""
    if not isinstance(found, dict):
        _refuse(where, "is not a table")
    for name, value in found.items():
        if name not in kinds:
            _refuse(where, f"has the unknown member {name!r}; it has {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            _refuse(where, f"has a member {name!r} of a wrong type")
    members: dict[str, Any] = found
    return members


def _refuse(where: str, reason: str) -> NoReturn:
    raise ValueError(f"{where} {reason}")
