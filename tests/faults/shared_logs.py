"""Two stores with one directory: at most one has it at a time, and a refused one leaves no trace.

Directories of the log are there before or not, are named by one of the stores or by both, and are read-only for one of
them or not. In some images the stores really start, one while the other has messages; in the others both take their
locks in two steps, in any order.
"""

from __future__ import annotations

import random
from pathlib import Path

from crash.checker import Violation
from faults.outcome import Outcome, runs
from faults.workload import abandon
from reput_broker.store.base.errors import StoreError, StoreLocked
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_broker.store.opening.lock import AbortMarker, DirectoryLock
from support.inside import log_of
from support.stores import FakeClock, bodies, dispatch_all, put, small_options

FILES = 4
BODY_BYTES = 900


def stores_sharing_a_log(seed: int, images: int) -> Outcome:
    """Two stores with separate or shared directories."""
    outcome = Outcome()
    for run_seed, directory in runs(seed, images, outcome):
        rng = random.Random(run_seed)
        case = Case(directory, rng)
        try:
            found = case.start_both() if rng.random() < 0.5 else case.lock_both()
        except Exception as error:
            found = [Violation("runs", f"{type(error).__name__}: {error}")]
        outcome.add(f"seed {run_seed}, {case}", found)
    return outcome


class Case:
    """What two stores are given, and what follows from that."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self._top = directory
        self._rng = rng
        self._dirs = [directory / f"disk{number}" / "log" for number in range(4)]
        self._there = set(rng.sample(self._dirs, rng.randrange(len(self._dirs))))
        for path in self._there:
            path.mkdir(parents=True)
        first = self._options("a")
        self.options = (first, self._options("a" if rng.random() < 0.1 else "b"))

    def _options(self, name: str) -> StoreOptions:
        named = self._rng.sample(self._dirs, self._rng.randrange(1, 4))
        read_only = named[1:] if self._rng.random() < 0.3 else []
        return small_options(self._top / name, commit_log_dirs=tuple(named), read_only_commit_log_dirs=tuple(read_only))

    def __str__(self) -> str:
        words = [
            f"{options.data_dir.name}: {_numbers(options.commit_log_dirs)}, of them read-only "
            f"{_numbers(options.read_only_commit_log_dirs)}"
            for options in self.options
        ]
        return f"{'; '.join(words)}; there: {_numbers(tuple(sorted(self._there)))}"

    @property
    def must_collide(self) -> bool:
        """Whether they may never have their directories at the same time."""
        one, other = self.options
        shared = set(one.log_dirs) & set(other.log_dirs)
        written = set(one.writable_log_dirs) & set(other.writable_log_dirs)
        return one.data_dir == other.data_dir or bool(shared & self._there or written)

    @property
    def may_collide(self) -> bool:
        """Whether there is anything that both name."""
        one, other = self.options
        return one.data_dir == other.data_dir or bool(set(one.log_dirs) & set(other.log_dirs))

    # -- stores --------------------------------------------------------------------------------------------

    def start_both(self) -> list[Violation]:
        """Start one and fill some files; start the other, which is refused or goes its own way."""
        one = self._opened(self.options[0])
        assert isinstance(one, MessageStore)
        self._fill(one, b"one")
        before = _tree(self._top)
        other = self._opened(self.options[1])
        found: list[Violation] = []
        if isinstance(other, MessageStore):
            if self.must_collide:
                found.append(Violation("refused", "the second store was opened"))
            self._fill(other, b"other")
        else:
            if not isinstance(other, StoreLocked) or not self.may_collide:
                found.append(Violation("refused", f"{type(other).__name__}: {other}"))
            if _tree(self._top) != before:
                changed = sorted(_tree(self._top).items() ^ before.items())
                found.append(Violation("nothing changed", f"the refused start left {changed[0][0]}"))
        self._fill(one, b"one")
        if isinstance(other, MessageStore) and self.may_collide:
            # One reads what was not there, and so was not locked, when it started: it is refused at its next start.
            abandon(one)
            abandon(other)
            return found
        return [*found, *self._check(one, other)]

    def _check(self, one: MessageStore, other: MessageStore | Exception) -> list[Violation]:
        """Kill both, start them again, and look for what they were given."""
        found = []
        for store, body in ((one, b"one"), (other, b"other")):
            if not isinstance(store, MessageStore):
                continue
            count = store.max_offset_in_queue("T", 0)
            abandon(store)
            again = self._opened(store.options)
            if not isinstance(again, MessageStore):
                found.append(Violation("starts", f"{type(again).__name__}: {again}"))
                continue
            served = [text.rstrip(b"\0") for text in bodies(again)]
            if served != [body + b":%d" % number for number in range(count)]:
                found.append(Violation("byte-equal", f"{body.decode()} has {len(served)} of {count}"))
            abandon(again)
        return found

    def _opened(self, options: StoreOptions) -> MessageStore | Exception:
        store = MessageStore(options, clock_ms=FakeClock())
        try:
            store.open()
        except (StoreError, OSError) as error:
            return error
        return store

    def _fill(self, store: MessageStore, body: bytes) -> None:
        for _ in range(FILES * 4096 // BODY_BYTES):
            number = log_of(store).next_queue_offsets.get(("T", 0), 0)
            put(store, (body + b":%d" % number).ljust(BODY_BYTES, b"\0"))
        dispatch_all(store)

    # -- locks ---------------------------------------------------------------------------------------------

    def lock_both(self) -> list[Violation]:
        """Let both reserve, acquire and perhaps release, in any order; an owner leaves a file of the log."""
        locks = [self._lock_of(options) for options in self.options]
        order = self._rng.sample([0, 0, 0, 1, 1, 1], 6)
        done = [0, 0]
        seen: list[dict[str, bytes | None]] = [{}, {}]
        found: list[Violation] = []
        owned: list[int] = []
        refused: set[int] = set()
        for who in order:
            if who in refused:
                continue
            step, done[who] = done[who], done[who] + 1
            before = _tree(self._top)
            try:
                if step == 0:
                    locks[who].reserve()
                    seen[who] = self._shown(who)
                elif step == 1:
                    stale = self._shown(who) != seen[who]
                    locks[who].acquire()
                    if stale:
                        found.append(Violation("refused", f"{who} owns what has been changed since it looked"))
                    owned.append(who)
                    self._leave_file(who)
                elif self._rng.random() < 0.5:
                    locks[who].release()
                    owned.remove(who)
            except StoreLocked:
                refused.add(who)
                if _tree(self._top) != before:
                    found.append(Violation("nothing changed", f"{who}, refused, left something"))
            if len(owned) == 2 and self.must_collide:
                found.append(Violation("refused", f"both own their directories, in the order {order}"))
        if len(refused) == 2:
            found.append(Violation("refused", f"nobody owns anything, in the order {order}"))
        if refused and not self.may_collide:
            found.append(Violation("refused", f"{refused} although they share nothing"))
        for lock in locks:
            lock.release()
        return found

    def _lock_of(self, options: StoreOptions) -> DirectoryLock:
        root = options.data_dir
        return DirectoryLock(root / "lock", AbortMarker(root / "abort"), options.log_dirs, options.writable_log_dirs)

    def _shown(self, who: int) -> dict[str, bytes | None]:
        """What a start would read there."""
        options = self.options[who]
        return {
            f"{path}/{name}": data
            for path in (options.data_dir, *options.writable_log_dirs)
            for name, data in _tree(path).items()
            if data
        }

    def _leave_file(self, who: int) -> None:
        """Change something, as an owner does."""
        directory = self.options[who].writable_log_dirs[0]
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{4096 * who:020d}").write_bytes(b"%d" % who)


def _tree(root: Path) -> dict[str, bytes | None]:
    """Every name below a directory, and what is in the files."""
    return {str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def _numbers(paths: tuple[Path, ...]) -> list[str]:
    return [path.parent.name for path in paths]
