"""The commands on the pages run as written, against a broker, in the order of their page."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

import click
import pytest
import yaml

from docs.blocks import BLOCKS, LANGUAGES, PAGES, ROOT, RUN, Block
from docs.scenes import OPTIONS, SCENES
from docs_reference.commands import command_of
from reput_broker.background import BackgroundBroker
from reput_broker.config.loading import load_config
from reput_cli.line import name_of
from reput_cli.root import root
from support.broker_process import free_port

SHELL = ("console", "sh")
NOT_RUN = [block for block in BLOCKS if block.not_run]
_CONFIRMATION = b"billing\n" * 20
"""What is typed where a command asks for the name of the group."""
_DEADLINE_S = 60.0
_LOOKS_AGAIN_S = 20.0
"""For how long a command is repeated that does not show yet what the page says."""
_SMALL_BROKER = {
    "REPUT_NAME_PORT": "off",
    "REPUT_HA_PORT": "off",
    "REPUT_FAST_PORT": "off",
    "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB",
    "REPUT_STORE__INDEX": "false",
}
"""Options of brokers that a page starts."""


def shell_pages() -> dict[str, list[Block]]:
    blocks = [block for block in RUN if block.language in SHELL or (block.language == "python" and block.title)]
    pages = {page: list(found) for page, found in groupby(blocks, key=lambda block: block.page)}
    return {page: found for page, found in pages.items() if any(block.language in SHELL for block in found)}


class Reader:
    """Someone who types the commands of a page, in a directory that has the names of a clone."""

    def __init__(self, directory: Path, broker: BackgroundBroker) -> None:
        self.directory = directory
        for name in ("client", "conf", "docs", "examples"):
            (directory / name).symlink_to(ROOT / name)
        (directory / ".venv").symlink_to(sys.prefix)
        assert broker.http_address is not None
        (directory / "backup").mkdir()
        self._names = {
            "127.0.0.1:10911": broker.address,
            "127.0.0.1:10913": broker.http_address,
            "/var/lib/reput": str(broker.data_dir),
            "/backup": str(directory / "backup"),
        }
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REPUT_")},
            **_SMALL_BROKER,
            "COLUMNS": "200",
            "HOME": str(directory),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "REPUT_PORT": str(free_port()),
            "REPUT_HTTP_PORT": str(free_port()),
            "REPUT_SERVER": broker.address,
        }
        self._running: list[tuple[Block, subprocess.Popen[bytes]]] = []

    def save(self, block: Block) -> None:
        """Write the file that a block is."""
        assert block.title is not None
        (self.directory / block.title).write_text(self._here(block.text))

    def type(self, block: Block) -> None:
        """Run the commands of a block; the first that fails, or shows something else, fails the test."""
        for command, expected in _console(block.text) if block.language == "console" else _script(block.text):
            if "Ctrl-C" in command:
                self._start(block, command, expected)
                continue
            told = re.search(r"# exit code (\d+)", command)
            ends_at = time.monotonic() + _LOOKS_AGAIN_S
            while True:
                status, output = self._finish(command)
                missing = _missing(expected, output.splitlines())
                if missing is None or time.monotonic() > ends_at:
                    break
                time.sleep(0.5)
            assert status == (int(told[1]) if told else 0), f"{block}: {command}\n{output}"
            assert missing is None, f"{block}: {command}\nnot shown: {missing}\n{output}"

    def press_ctrl_c(self) -> None:
        """End what was started, the last first."""
        for block, process in reversed(self._running):
            os.killpg(process.pid, signal.SIGINT)
            try:
                status = process.wait(20.0)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            assert status in (0, 130, -signal.SIGINT), f"{block}\n{self._log(process).read_text()}"

    def _finish(self, command: str) -> tuple[int, str]:
        """Run a script of bash on a terminal, and return its exit code and what it shows."""
        terminal, theirs = os.openpty()
        attributes = termios.tcgetattr(theirs)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, attributes)
        with subprocess.Popen(
            ["bash", "-c", "set -euo pipefail\n" + self._here(command)],
            cwd=self.directory,
            env=self._environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        ) as process:
            os.close(theirs)
            late = threading.Timer(_DEADLINE_S, os.killpg, (process.pid, signal.SIGKILL))
            late.start()
            os.write(terminal, _CONFIRMATION)
            shown = b""
            with suppress(OSError):  # its end
                while data := os.read(terminal, 65536):
                    shown += data
            status = process.wait()  # before the terminal hangs up
            os.close(terminal)
            late.cancel()
        return status, re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())

    def _start(self, block: Block, command: str, expected: list[str]) -> None:
        """Run a command that Ctrl-C ends, and wait until it shows what it should, or something."""
        with (self.directory / f"output-{len(self._running)}").open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", self._here(command)],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_take_ctrl_c,
            )
        self._running.append((block, process))
        ends_at = time.monotonic() + _DEADLINE_S
        while not (output := self._log(process).read_text()) or _missing(expected, output.splitlines()):
            is_late = time.monotonic() > ends_at
            assert process.poll() is None, f"{block}: {command}\n{output}"
            assert not is_late, f"{block}: {command}\nnot shown: {expected}\n{output}"
            time.sleep(0.01)

    def _log(self, process: subprocess.Popen[bytes]) -> Path:
        number = [running for _, running in self._running].index(process)
        return self.directory / f"output-{number}"

    def _here(self, text: str) -> str:
        for written, here in self._names.items():
            text = text.replace(written, here)
        return text


def _take_ctrl_c() -> None:
    """A program that the shell has put into the background ignores Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _console(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command after a prompt, and the lines that it shows."""
    command: str | None = None
    shown: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, shown
            command, shown = line[2:], []
        else:
            shown.append(line)
    assert command is not None, "a console block begins with a prompt"
    yield command, shown


def _script(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a block without prompts: those that Ctrl-C ends, that fail, and what is between them."""
    for is_alone, lines in groupby(text.splitlines(keepends=True), key=_is_alone):
        if is_alone:
            yield from ((line, []) for line in lines)
        else:
            yield "".join(lines), []


def _is_alone(line: str) -> bool:
    return "Ctrl-C" in line or "# exit code" in line


def _missing(expected: list[str], shown: list[str]) -> str | None:
    """Return the first expected line that is not shown, in order; words with a digit, and rules, may differ."""
    lines = iter(shown)
    for line in expected:
        if not any(_alike(line.split(), other.split()) for other in lines):
            return line
    return None


def _alike(expected: list[str], shown: list[str]) -> bool:
    def same(one: str, other: str) -> bool:
        is_number = re.search(r"\d", one) and re.search(r"\d", other)
        return one == other or bool(is_number) or (set(one) == set(other) == {"─"})

    return len(expected) == len(shown) and all(map(same, expected, shown))


@pytest.mark.parametrize("page", shell_pages())
def test_commands(page: str, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path) -> None:
    broker = new_reput_broker(http_port=0, **OPTIONS.get(page, {}))
    reader = Reader(tmp_path, broker)
    try:
        for number, block in enumerate(shell_pages()[page]):
            if block.language == "python":
                reader.save(block)
            else:
                with SCENES.get(page, _nothing)(broker.address, number):
                    reader.type(block)
    finally:
        reader.press_ctrl_c()


@contextmanager
def _nothing(_address: str, _number: int) -> Iterator[None]:
    yield


@pytest.mark.parametrize("block", NOT_RUN, ids=str)
def test_not_run(block: Block) -> None:
    pytest.skip(f"not run: {block.not_run}")


@pytest.mark.parametrize("block", [block for block in RUN if block.language == "toml"], ids=str)
def test_options(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(block.text)
    assert load_config(file).origins


@pytest.mark.parametrize("block", [block for block in RUN if block.language == "json"], ids=str)
def test_json(block: Block) -> None:
    assert json.loads(block.text)


@pytest.mark.parametrize("block", [block for block in RUN if block.language == "yaml"], ids=str)
def test_a_scrape_configuration(block: Block) -> None:
    """It has the job name of the bundled one, which the alerts expect."""
    shown, bundled = (
        yaml.safe_load(text) for text in (block.text, (ROOT / "conf/prometheus/prometheus.yml").read_text())
    )
    assert shown.keys() <= bundled.keys()
    assert [job["job_name"] for job in shown["scrape_configs"]] == [bundled["scrape_configs"][0]["job_name"]]


def test_every_block_has_a_language_that_says_what_runs_it() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_commands_that_are_not_run_exist() -> None:
    """Commands in the text, and in blocks that are not run, have a noun, a verb and options of `reput`."""
    wrong = []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for command in re.findall(r"`reput\s([^`|]+)", text):
            wrong += [f"{path.relative_to(ROOT)}: reput {command}: {problem}" for problem in _problems(command)]
    for block in NOT_RUN:
        for command in re.findall(r"(?m)^(?:\$ )?reput ([^|>;&\n]+)", block.text):
            wrong += [f"{block}: reput {command}: {problem}" for problem in _problems(command)]
    assert wrong == []


def _problems(command: str) -> Iterator[str]:
    words = shlex.split(command, comments=True)
    found: click.Command = root
    context = click.Context(found)
    while words and isinstance(found, click.Group) and words[0].islower() and not words[0].startswith("-"):
        name = words.pop(0)
        inner = command_of(found, context, name_of(found, context, name) or name)
        if inner is None:
            yield f"there is no {name!r}"
            return
        found, context = inner, click.Context(inner, parent=context)
    options = {flag for option in found.get_params(context) for flag in (*option.opts, *option.secondary_opts)}
    for word in words:
        flag = word.partition("=")[0]
        if re.match(r"-{1,2}[a-zA-Z]", word) and flag not in options and flag[:2] not in options:
            yield f"there is no option {flag}"


def test_mistakes_are_found() -> None:
    assert list(_problems("group list billing --timeout 5s")) == []
    assert list(_problems("group lst")) == ["there is no 'lst'"]
    assert list(_problems("group ls")) == []
    assert list(_problems("topic list --sever a:1")) == ["there is no option --sever"]
    assert _missing(["billing 2 ok"], ["GROUP LAG STATE", "billing 17 ok"]) is None
    assert _missing(["billing 2 ok"], ["billing - ok"]) == "billing 2 ok"
    assert _missing(["b 1", "a 1"], ["a 1", "b 1"]) == "a 1"


def test_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?m)^([a-z-]+):.* ## ", makefile))
    kinds = " ".join(re.findall(r"(?m)^(?:BENCHES|PROXIES|SOAKS) := (?:.*\\\n)*.*|^(?:DEMO|INTEROP)_\w+", makefile))
    named = [
        (path.name, *found)
        for path in PAGES
        for found in re.findall(r"(?m)(?:`|^)make\s([a-z-]+)(?: KIND=([a-z-]+))?", _without_old(path))
    ]
    assert named
    assert [name for name in named if name[1] not in targets] == []
    assert [name for name in named if not re.search(rf"\b{name[2]}\b", re.sub("DEMO_|INTEROP_", "", kinds))] == []


def _without_old(path: Path) -> str:
    """A page without its table of old names."""
    return re.sub(r"\| was \|(?:.+\n)+", "", path.read_text(encoding="utf-8"))
