"""The JSON files under `config/`, in RocketMQ's format (RocketMQ: ConfigManager).

Reading: `NAME` is used; if it is missing or empty, `NAME.bak`; if that is too, the table starts empty. RocketMQ writes
integer keys without quotes, so keys are quoted first.

Writing: the new text is written to `NAME.tmp` and synced; then `NAME` is renamed to `NAME.bak` and `NAME.tmp` to
`NAME`, and the directory is synced. After a crash at any point `NAME` or `NAME.bak` is complete, and RocketMQ reads
both. (RocketMQ writes `NAME` in place; a crash can tear it.)

RocketMQ deletes a file that it cannot decode. Here, with a complete `NAME.bak`, the file is renamed to a name that says
so. Without one the start is refused, because an empty table would forget topics or offsets.
"""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring as _quoted
from operator import is_
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import structlog
from typing_extensions import override

from reput_broker.store.base.file_io import make_directories, set_aside, sync_names
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_STRING_OR_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?\d+)(?=\s*:)')


class ConfigFileDamaged(ReputError):
    """A file under `config/` cannot be decoded and there is no backup. Nothing was changed.

    Attributes:
        path: the file.
        reason: what is wrong with it.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be read: {reason}; restore a good copy, or move it away to start with an empty table"
        )
        self.path = path
        self.reason = reason


class LoadedText(NamedTuple):
    """The decoded members, and the bytes they were decoded from."""

    members: dict[str, Any]
    data: bytes
    path: Path | None
    """The file that was read; None if there is none and the table is empty."""


class ConfigFile:
    """The file of a table, with its backup."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self.temporary = path.with_name(path.name + ".tmp")

    def load(self) -> LoadedText:
        """Return the members of the table; none if no file has any.

        Raises:
            ConfigFileDamaged: the file cannot be decoded and there is no backup, or the backup cannot be decoded.
            OSError: a file cannot be read.
        """
        damage: str | None = None
        data = _read(self.path)
        if data:
            try:
                return LoadedText(decode(data), data, self.path)
            except ValueError as error:
                damage = str(error)
        backup = _read(self.backup)
        if not backup:
            if damage is not None:
                raise ConfigFileDamaged(self.path, damage)
            return LoadedText({}, b"", None)
        try:
            loaded = LoadedText(decode(backup), backup, self.backup)
        except ValueError as error:
            raise ConfigFileDamaged(self.backup, str(error)) from None
        if damage is not None:
            aside = set_aside(self.path, "damaged")
            log.error(
                "config_file_damaged",
                path=str(self.path),
                reason=damage,
                kept_as=str(aside),
                hint=f"continuing with {self.backup.name}; changes made after it was written are in the other file",
            )
        return loaded

    def write_temporary(self, data: bytes) -> None:
        """Write and sync `NAME.tmp`. Blocks. Raises OSError; `NAME` and `NAME.bak` are unchanged."""
        make_directories(self.path.parent)
        fd = os.open(self.temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.temporary)) from error
        finally:
            os.close(fd)

    def adopt_temporary(self) -> None:
        """Rename `NAME` to `NAME.bak` and `NAME.tmp` to `NAME`, without a sync."""
        if self.path.exists() and self.path.stat().st_size:
            os.replace(self.path, self.backup)
        os.replace(self.temporary, self.path)

    def sync_directory(self) -> None:
        """Make the names durable. Blocks."""
        sync_names(self.path.parent)

    def save(self, data: bytes) -> None:
        """Replace the file's text durably. Blocks. Raises OSError; the old text stays valid."""
        self.write_temporary(data)
        self.adopt_temporary()
        self.sync_directory()

    def remove(self) -> None:
        """Remove the file and its backup. Raises OSError."""
        self.path.unlink(missing_ok=True)
        self.backup.unlink(missing_ok=True)


class SaveJob(Protocol):
    """One write of a table to its file, in three steps."""

    def write(self) -> None:
        """Write the new file next to the old one. Blocks: for a worker thread. Raises OSError."""

    def adopt(self) -> None:
        """Replace the old file. Fast: for the table's owner. Raises OSError."""

    def sync(self) -> None:
        """Make the new name durable. Blocks: for a worker thread. Raises OSError."""

    def abandon(self) -> None:
        """End the job after an error: the table is still unsaved. After an error in `write` or `adopt` the old file
        stays valid.
        """


class SavedTable(Protocol):
    """A table that is saved to a file."""

    def begin_save(self) -> SaveJob | None:
        """Return a job that saves the current content; None if the file has it already."""


@dataclass(eq=False, repr=False)
class ConfigFileSave(SaveJob):
    """One write of a table to its file; see `SaveJob`.

    Args:
        members: returns the members as of the creation of the job, or their text. Called in a worker thread: it reads
            only copies and values that never change.
        on_abandon: called if the old file stays valid.
    """

    _file: ConfigFile
    _members: Callable[[], dict[str, Any] | bytes]
    _on_abandon: Callable[[], None]

    @override
    def write(self) -> None:
        self._file.write_temporary(self._text())

    def _text(self) -> bytes:
        members = self._members()
        return members if isinstance(members, bytes) else encode(members)

    @override
    def adopt(self) -> None:
        self._file.adopt_temporary()

    @override
    def sync(self) -> None:
        self._file.sync_directory()

    @override
    def abandon(self) -> None:
        self._on_abandon()


class ConfigTable(SavedTable):
    """A table whose every save writes its whole file. One owner; only a save job's `write` runs in another thread.

    Args:
        path: of the file; not read yet.
    """

    def __init__(self, path: Path) -> None:
        self.file = ConfigFile(path)
        self._unsaved = False

    @abstractmethod
    def _snapshot(self) -> Callable[[], dict[str, Any] | bytes]:
        """Return a function that makes the members of the file as of now, or its text, in any thread."""

    @override
    def begin_save(self) -> ConfigFileSave | None:
        if not self._unsaved:
            return None
        self._unsaved = False
        return ConfigFileSave(self.file, self._snapshot(), self._save_failed)

    def _save_failed(self) -> None:
        self._unsaved = True


class EntryTexts:
    """The texts of the entries of a large table, kept from save to save: a save encodes what has changed.

    Args:
        table: the member of the file that has the entries.
    """

    def __init__(self, table: str) -> None:
        self._place = f'\n\t"{table}":'.encode()
        self._texts: dict[str, tuple[tuple[object, ...], bytes]] = {}

    def encode(
        self, members: dict[str, Any], entries: Mapping[str, tuple[object, ...]], entry: Callable[..., Any]
    ) -> bytes:
        """Return the file's text.

        Args:
            members: of the file; the table is an empty object there.
            entries: by name, what each entry is made of: objects that are replaced when they change.
            entry: makes an entry of that.
        """
        before, self._texts = self._texts, {}
        for name in sorted(entries):
            parts, known = entries[name], before.get(name)
            if known is None or not all(map(is_, parts, known[0])):
                text = encode({name: entry(*parts)})[2:-2].replace(b"\n", b"\n\t")
                known = parts, b"\t" + text
            self._texts[name] = known
        if not self._texts:
            return encode(members)
        table = b",\n".join([text for _, text in self._texts.values()])
        # Only a member of the file is behind a line break and one tab.
        return encode(members).replace(self._place + b"{}", b"%b{\n%b\n\t}" % (self._place, table), 1)


def decode(data: bytes) -> dict[str, Any]:
    """Return the members of a table's JSON, with or without quotes around integer keys.

    Raises:
        ValueError: it is not a JSON object.
    """
    text = data.decode()
    try:
        members = json.loads(text)
    except ValueError:
        # Many times slower, and only RocketMQ's files need it.
        members = json.loads(_STRING_OR_BARE_KEY.sub(_quote_key, text))
    if not isinstance(members, dict):
        raise ValueError(f"an object is needed, not {type(members).__name__}")
    return members


def encode(members: dict[str, Any]) -> bytes:
    """Return a table as strict JSON, indented with tabs like RocketMQ's files."""
    return _indented(members, "\n").encode()


def _indented(value: object, line: str) -> str:
    """Return the JSON text of a value; `line` is the line break and the tabs before it.

    `json` does this ten times slower: it uses its compiled encoder only for text without indentation.
    """
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping) and value:
        inner = line + "\t"
        parts = [
            f"{inner}{_quoted(key) if isinstance(key, str) else _key(key)}:{_indented(each, inner)}"
            for key, each in value.items()
        ]
        return f"{{{','.join(parts)}{line}}}"
    if isinstance(value, list | tuple) and value:
        inner = line + "\t"
        return f"[{','.join([inner + _indented(each, inner) for each in value])}{line}]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: object) -> str:
    return next(iter(json.dumps({key: 0}, ensure_ascii=False)[1:].rpartition(": 0}")))


def _quote_key(match: re.Match[str]) -> str:
    if match[2] is None:
        return match[0]
    return f'{match[1]}"{match[2]}"'


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


@dataclass(frozen=True, slots=True, order=True)
class DataVersion:
    """How often a table changed, and when it last did. Ordered by state version, counter, timestamp."""

    state_version: int = 0
    counter: int = 0
    timestamp_ms: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after one more change at `now_ms`."""
        return DataVersion(counter=self.counter + 1, timestamp_ms=now_ms)

    def to_json(self) -> dict[str, int]:
        """Return the members in RocketMQ's (alphabetical) order."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}

    def encoded(self) -> bytes:
        """Return the members as a body."""
        return json.dumps(self.to_json(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, members: object) -> Self:
        """Return the version from its members; missing ones (older files) and invalid ones count as 0."""
        if not isinstance(members, Mapping):
            return cls()
        return cls(*(_whole(members.get(name)) for name in ("stateVersion", "counter", "timestamp")))


def _whole(value: Any) -> int:
    if isinstance(value, dict):  # 4.x wraps the counter: {"value": 3}
        value = value.get("value")
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
