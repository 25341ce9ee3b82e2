"""`make figures`: the size of the source, how its parts are wired, and how much of it one message runs through.

Size and wiring are of the files on disk. Calls are counted in one process with a broker, a producer and a consumer in
it, over loopback: the fewest of several sends and pulls, so that chance work of other tasks is left out.
"""

from __future__ import annotations

import ast
import io
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import trio

from reput_broker import Broker, BrokerConfig
from reput_client import Message, Producer, PullConsumer

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("protocol", "broker", "client", "proxy", "pipeline", "cli")
PARAMETERS_MAX: Final = 8
NO_CODE: Final = frozenset(
    {*(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT), *(tokenize.COMMENT, tokenize.ENDMARKER)}
)
HEAD_NAMES: Final = frozenset(
    {"FRONT", "BACK", "OFFSETS", "BORN_HOST_AT", "SYS_FLAG_AT", "BORN_HOST_IPV6", "STORE_HOST_IPV6"}
)
"""Who imports one of these reads the head of a record."""
LAYOUT: Final = "reput_protocol.record.layout"
TRIES: Final = 9
PAUSE_S: Final = 0.02
"""Between two tries; a client looks at a connection that was idle for longer before it uses it again."""


@dataclass
class Figures:
    """What is counted of all files."""

    files: int = 0
    code: Counter[str] = field(default_factory=Counter)
    """Lines without docstrings, comments and blanks, by folder."""
    wiring: int = 0
    long_constructors: list[str] = field(default_factory=list)
    head_readers: list[str] = field(default_factory=list)
    importers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The modules that import a module while it runs."""
    typing_importers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """These and the ones that import it for types only."""
    folders: dict[str, str] = field(default_factory=dict)
    """The folder of each module; a package's own module is in its folder."""


def sources() -> Iterator[tuple[str, str, str]]:
    """Yield folder, module and text of each source file."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).parts
            if not parts[0].startswith("reput_") or (folder == "client" and parts[0] == "reput_protocol"):
                continue  # a link to protocol/
            yield folder, ".".join((*parts[:-1], path.stem)), path.read_text()


def measure() -> Figures:
    """Count everything that can be read from the files."""
    figures = Figures()
    modules = {module.removesuffix(".__init__") for _, module, _ in sources()}
    for folder, file, text in sources():
        module = file.removesuffix(".__init__")
        figures.folders[module] = file.rpartition(".")[0]
        figures.files += 1
        tree = ast.parse(text)
        docs, wires = _lines_of_docs(tree), _lines_of_wiring(tree)
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        figures.code[folder] += len(lines - docs)
        figures.wiring += len((lines - docs) & wires)
        figures.long_constructors += (f"{module}.{name}" for name in _long_constructors(tree))
        for_types = _lines_for_types(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module or not node.module.startswith("reput_"):
                continue
            names = {alias.name for alias in node.names}
            if node.module == LAYOUT and names & HEAD_NAMES:
                figures.head_readers.append(module)
            imported = {name if (name := f"{node.module}.{one}") in modules else node.module for one in names}
            for found in imported:
                figures.typing_importers[found].add(module)
                if node.lineno not in for_types:
                    figures.importers[found].add(module)
    return figures


def _lines_of_docs(tree: ast.Module) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _lines_of_wiring(tree: ast.Module) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.FunctionDef) and node.name == "__init__")
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _lines_for_types(tree: ast.Module) -> set[int]:
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _long_constructors(tree: ast.Module) -> Iterator[str]:
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.ClassDef):
            continue
        for node in owner.body:
            if (
                isinstance(node, ast.FunctionDef)
                and node.name == "__init__"
                and len(node.args.args) + len(node.args.kwonlyargs) - 1 > PARAMETERS_MAX
            ):
                yield owner.name


def circles(importers: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        stack.append(module)
        for other in importers.get(module, ()):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in list(importers):
        if module not in order:
            visit(module)
    return found


def mutual_folders(importers: Mapping[str, set[str]], folders: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the pairs of folders of which each imports the other."""
    pairs = {
        (folders[user], folders[module])
        for module, users in importers.items()
        for user in users
        if folders[user] != folders[module]
    }
    return sorted(pair for pair in pairs if pair[::-1] in pairs and pair[0] < pair[1])


class _Calls:
    """Counts the calls of functions of the project, by file."""

    def __init__(self) -> None:
        self.by_function: Counter[tuple[str, str]] = Counter()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            _, is_ours, path = frame.f_code.co_filename.rpartition("/reput_")
            if is_ours:
                self.by_function[path, frame.f_code.co_qualname] += 1


async def _fewest(work: Callable[[], Awaitable[Any]]) -> _Calls:
    counted = []
    for _ in range(TRIES):
        calls = _Calls()
        sys.setprofile(calls)
        try:
            await work()
        finally:
            sys.setprofile(None)
        counted.append(calls)
        await trio.sleep(PAUSE_S)
    return min(counted, key=lambda calls: calls.by_function.total())


async def path_of_a_message() -> dict[str, _Calls]:
    """Count the calls of one send and of one pull, in client, protocol and broker together."""
    message = Message("orders", b"x" * 100)
    with tempfile.TemporaryDirectory() as directory:
        async with (
            Broker(BrokerConfig(data_dir=Path(directory) / "data", port=0)) as broker,
            Producer(broker.address, group="figures") as producer,
            PullConsumer(broker.address, group="figures") as consumer,
        ):

            async def send() -> None:
                await producer.send(message, ack="page_cache")

            async def pull() -> None:
                await consumer.pull("orders", queue_id=0, offset=0, max_messages=1, wait_s=0)

            for _ in range(20):
                await send()
            await trio.sleep(0.2)
            for _ in range(5):
                await pull()
            return {"send": await _fewest(send), "pull": await _fewest(pull)}


def main() -> None:
    """Print the figures; with `--list` the names behind them as well."""
    figures, names = measure(), "--list" in sys.argv[1:]
    code = figures.code.total()
    single = sorted(module for module, users in figures.importers.items() if len(users) == 1)
    print(f"{figures.files} files")
    print(f"{code} lines of code: " + ", ".join(f"{key} {value}" for key, value in figures.code.items()))
    print(f"{100 * figures.wiring / code:.1f} % of them import or are constructors")
    facts: dict[str, Sequence[object]] = {
        f"constructors with more than {PARAMETERS_MAX} parameters": figures.long_constructors,
        "modules with a single importer": single,
        "circles of imports": circles(figures.importers),
        "circles with the imports for types": circles(figures.typing_importers),
        "pairs of folders that import each other": mutual_folders(figures.importers, figures.folders),
        "readers of a record's head": figures.head_readers,
    }
    for what, found in facts.items():
        print(len(found), what)
        for one in found if names else ():
            print("   ", one)
    for what, calls in trio.run(path_of_a_message).items():
        files = {file for file, _ in calls.by_function}
        print(f"{calls.by_function.total()} calls in {len(files)} files for one {what}")
        for (file, function), count in sorted(calls.by_function.items()) if names else ():
            print(f"    {count} {file} {function}")


if __name__ == "__main__":
    main()
