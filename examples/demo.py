"""Send the lines of Python's standard library through the broker and compare what comes back.

Every line becomes a message of topic `stdlib-lines`: the tag is the top-level module, the key the file, the property
`line` the line number. All messages are then pulled, and those of a few modules again by tag. Lines and bytes per
module are printed next to those counted in the files. `make demo` runs it with a broker in a temporary directory;
`--server` uses a running one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from reput_client.blocking import Ack, Admin, Message, Producer, PullConsumer

TOPIC = "stdlib-lines"
QUEUES = 4
SMALL_FILES = {
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
    "REPUT_STORE__INDEX_SLOTS": "10000",
    "REPUT_STORE__INDEX_ENTRIES": "40000",
}
"""Small files: with the defaults, the first message allocates 1.4 GiB of disk."""
BLOCK_MESSAGES = 512
TAGS_PULLED = ("asyncio", "json", "email")
SKIPPED_DIRECTORIES = {"site-packages", "dist-packages", "__pycache__"}

Counts = dict[str, tuple[int, int]]


def main() -> int:
    """Produce, pull and compare; return 0 if everything is equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", help="HOST:PORT of a running broker (default: start one)")
    parser.add_argument("--ack", default="flushed", choices=["flushed", "page_cache"])
    arguments = parser.parse_args()
    files = source_files(Path(sysconfig.get_path("stdlib")))
    expected = count_files(files)
    total = sum(lines for lines, _ in expected.values())
    with running_broker(arguments.server) as address, progress_bars() as progress:
        topic = f"{TOPIC}-{time.time_ns()}" if arguments.server else TOPIC
        with Admin(address) as admin:
            admin.create_topic(topic, queues=QUEUES)
        sending = progress.add_task("produce", total=total)
        sent_s = produce(address, topic, files, arguments.ack, sending, progress)
        pulled, pulled_s = pull(address, topic, "*", progress.add_task("pull", total=total), progress)
        by_tag = {
            tag: pull(address, topic, tag, progress.add_task(f"pull {tag}", total=expected[tag][0]), progress)[0]
            for tag in TAGS_PULLED
            if tag in expected
        }
    equal = pulled == expected and all(counts == {tag: expected[tag]} for tag, counts in by_tag.items())
    _print_table(expected, pulled)
    size_mib = sum(size for _, size in expected.values()) / (1 << 20)
    print(
        f"{len(files)} files, {total} lines, {size_mib:.1f} MiB: produced in {sent_s:.1f} s ({arguments.ack}),", end=" "
    )
    print(f"pulled in {pulled_s:.1f} s; by tag: " + ", ".join(f"{t} {c[t][0]} lines" for t, c in by_tag.items()))
    if arguments.server is None:
        print("this broker has small files; with those of `reput serve`, the first message takes 1.4 GiB of disk")
    print("equal" if equal else "NOT EQUAL")
    return 0 if equal else 1


def source_files(stdlib: Path) -> list[Path]:
    """Return the source files below a directory, without installed packages."""
    return sorted(
        path for path in stdlib.rglob("*.py") if SKIPPED_DIRECTORIES.isdisjoint(path.relative_to(stdlib).parts)
    )


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line with its newline) of a file; a last line without a newline counts too."""
    with path.open("rb") as file:
        yield from enumerate(file, start=1)


def module_of(path: Path) -> str:
    """Return the top-level module that a file of the standard library belongs to."""
    first = path.relative_to(sysconfig.get_path("stdlib")).parts[0]
    return first.removesuffix(".py")


def count_files(files: Iterable[Path]) -> Counts:
    """Return lines and bytes per module, counted in the files."""
    counts: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for path in files:
        lines, size = counts[module_of(path)]
        counts[module_of(path)] = (lines + sum(1 for _ in read_lines(path)), size + path.stat().st_size)
    return {module: count for module, count in counts.items() if count[0]}


def produce(address: str, topic: str, files: Iterable[Path], ack: Ack, task: object, progress: Progress) -> float:
    """Send every line; return the seconds it took."""
    started_at = time.monotonic()
    with Producer(address, group="demo", timeout_s=30.0) as producer:
        for block in _blocks(topic, files):
            producer.send_batch(block, ack=ack)
            progress.advance(task, len(block))  # type: ignore[arg-type]
    return time.monotonic() - started_at


def _blocks(topic: str, files: Iterable[Path]) -> Iterator[list[Message]]:
    block: list[Message] = []
    for path in files:
        tag, key = module_of(path), str(path.relative_to(sysconfig.get_path("stdlib"))).replace(" ", "_")
        for number, line in read_lines(path):
            block.append(Message(topic, line, tag=tag, keys=(key,), properties={"line": str(number)}))
            if len(block) == BLOCK_MESSAGES:
                yield block
                block = []
    if block:
        yield block


def pull(address: str, topic: str, tags: str, task: object, progress: Progress) -> tuple[Counts, float]:
    """Read all queues to their ends; return lines and bytes per tag, and the seconds it took."""
    started_at = time.monotonic()
    counts: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    with Admin(address) as admin, PullConsumer(address, group="demo", timeout_s=30.0) as consumer:
        for queue_id in range(QUEUES):
            offset, end = 0, admin.max_offset(topic, queue_id)
            while offset < end:
                result = consumer.pull(
                    topic, queue_id=queue_id, offset=offset, tags=tags, max_messages=1024, wait_s=0, read_ahead=True
                )
                for message in result.messages:
                    lines, size = counts[message.tag or ""]
                    counts[message.tag or ""] = (lines + 1, size + len(message.body))
                progress.advance(task, len(result.messages))  # type: ignore[arg-type]
                offset = result.next_begin_offset
    return dict(counts), time.monotonic() - started_at


@contextmanager
def running_broker(server: str | None) -> Iterator[str]:
    """Yield the address of the given broker, or of one that runs until the block ends."""
    if server is not None:
        yield server
        return
    with tempfile.TemporaryDirectory(prefix="reput-demo-") as directory:
        command = [sys.executable, "-m", "reput_cli", "serve", "--data-dir", directory, "--port", "0"]
        process = subprocess.Popen(
            [*command, "--address-file", f"{directory}/address"],
            stderr=subprocess.DEVNULL,
            env=os.environ | SMALL_FILES,
        )
        try:
            yield _wait_for(Path(directory) / "address", process)
        finally:
            process.terminate()
            process.wait()


def _wait_for(path: Path, process: subprocess.Popen[bytes], deadline_s: float = 30.0) -> str:
    started_at = time.monotonic()
    while not path.exists():
        if process.poll() is not None or time.monotonic() - started_at > deadline_s:
            raise SystemExit("the broker did not start; `reput serve` says why")
        time.sleep(0.02)
    return path.read_text().strip()


def progress_bars() -> AbstractContextManager[Progress]:
    """Return progress bars on stderr, one for each task."""
    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True))


def _print_table(expected: Counts, pulled: Counts) -> None:
    table = Table("module", "lines in files", "lines pulled", "bytes in files", "bytes pulled", "")
    largest = sorted(expected, key=lambda module: -expected[module][0])
    for module in largest[:15]:
        self_row, other = expected[module], pulled.get(module, (0, 0))
        mark = "=" if self_row == other else "DIFFERS"
        table.add_row(module, str(self_row[0]), str(other[0]), str(self_row[1]), str(other[1]), mark)
    rest = largest[15:]
    table.add_row(
        f"{len(rest)} others",
        *(str(sum(counts.get(m, (0, 0))[i] for m in rest)) for i in (0, 1) for counts in (expected, pulled)),
        "=" if all(expected[m] == pulled.get(m) for m in rest) else "DIFFERS",
    )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
