"""What people write who do not know the command line: it is understood, or refused with the line that they meant."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import cast

import click
import pytest

from reput_cli.examples import EXAMPLES
from reput_cli.line import ordered
from reput_cli.options import SharedOption, every_shared_option
from reput_cli.root import root
from reput_protocol.exit_codes import ExitCode
from support.command import reput

NOWHERE = "127.0.0.1:1"
"""No broker is there: a line that is understood ends with CANNOT_CONNECT."""

UNDERSTOOD = (
    "topic ls",
    "topic rm orders",
    f"--server {NOWHERE} topic list",
    f"topic --server={NOWHERE} list",
    f"--server {NOWHERE} --timeout 1s -q group describe billing",
    "--json topic list",
    "topic list --json",
    "-O json group list --json",
    "topic delete orders -y",
)
REFUSED = {
    "topics": "topic list",
    "topc list": "topic list",
    "topic craete orders": "topic create orders",
    "list topics": "topic list",
    "create topic orders": "topic create orders",
    "describe group billing": "group describe billing",
    "rm topic orders": "topic delete orders",
    "topic orders": "topic describe orders",
    "topic show orders": "topic describe orders",
    "group lag billing": "group describe billing",
    "lag": "group list",
    "lag billing": "group describe billing",
    "queue list": "topic list",
    "send orders hi": "produce orders hi",
    "publish orders hi": "produce orders hi",
    "start": "serve",
    "status": "broker status",
    "broker stats": "broker status",
    "pipeline archiv --help": "pipeline archive --help",
    # Kafka's
    "topic create orders --partitions 6": "topic create orders --queues 6",
    "topic create orders --partitions=6": "topic create orders --queues 6",
    "topic create --topic orders": "topic create orders",
    "topic --create --topic orders --partitions 6": "topic create orders --queues 6",
    "topic create orders --replication-factor 3": "topic create orders",
    "topic list --bootstrap-server broker1:9092": "topic list --server broker1:9092",
    "--bootstrap-server broker1:9092 topic list": "topic list --server broker1:9092",
    "consume orders --from-beginning": "consume orders --from earliest",
    "consume orders --partition 0": "consume orders --queue 0",
    "consume orders --from-beginning --max-messages 5": "consume orders --from earliest --count 5",
    "consume --topic orders --consumer-group billing": "consume orders --group billing",
    "group reset billing orders --to-earliest": "group reset billing orders --to earliest",
    "group reset billing orders --shift-by -5": "group reset billing orders --shift -5",
    # mqadmin's
    "topicList -n 127.0.0.1:9876": "topic list --server 127.0.0.1:9876",
    "updateTopic -n 127.0.0.1:9876 -t orders -r 8": "topic create --server 127.0.0.1:9876 orders --queues 8",
    "updateTopic -c DefaultCluster -t orders": "topic create orders",
    "consumerProgress -g billing": "group describe billing",
    # values and words
    "topic create orders -q 6": "topic create orders --queues 6",
    "topic list --sever broker1": "topic list --server broker1",
    "topic list --format json": "topic list --json",
    "topic list --output jsno": "topic list --output json",
    "consume orders --from 2026-01-02": "consume orders --from @2026-01-02",
    "consume orders --timeout 5": "consume orders --timeout 5s",
    "produce orders hello world": "produce orders 'hello world'",
    "produce orders --value hi": "produce orders hi",
    "produce orders --file a.txt --keys o-42": "produce orders --file a.txt --key o-42",
    "topic list -help": "topic list --help",
    "serve --http 8080": "serve --http-port 8080",
    "topic list --password secret --user alice": "topic list --secret-file FILE --user alice",
    "topic list --password=secret --user alice": "topic list --secret-file FILE --user alice",
}


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPUT_SERVER", NOWHERE)


@pytest.mark.parametrize("line", UNDERSTOOD)
def test_it_is_understood(line: str) -> None:
    done = reput(*shlex.split(line))
    assert done.returncode == ExitCode.CANNOT_CONNECT, done.stderr
    assert f"cannot connect to {NOWHERE}" in done.stderr


@pytest.mark.parametrize(("line", "meant"), REFUSED.items())
def test_it_is_refused_with_the_line_that_was_meant(line: str, meant: str) -> None:
    done = reput(*shlex.split(line))
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert f"  try:    reput {meant}\n" in done.stderr
    assert "secret" not in done.stderr.replace("--secret-file", "")
    if "--help" not in meant:
        parse(meant)


def test_json_before_produce_is_the_form_of_its_output() -> None:
    context = click.Context(root, info_name="reput")
    assert ordered(root, context, ["--json", "produce", "t", "x"]) == ["produce", "-O", "json", "t", "x"]
    assert ordered(root, context, ["--json", "topic", "ls"]) == ["topic", "list", "--json"]


def parse(line: str) -> None:
    """Parse a line without running it."""
    command: click.Command = root
    context = click.Context(root, info_name="reput")
    words = ordered(root, context, shlex.split(line))
    while isinstance(command, click.Group):
        if words == [] and line == "doctor":
            return  # its first command is the default
        command = cast("click.Command", command.get_command(context, word := words.pop(0)))
        if not isinstance(command, click.Group):
            command.make_context(word, words, parent=context)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("group describe", "Missing argument 'GROUP'."),
        ("topic create my topic", "Got unexpected extra argument (topic)"),
        ("topic create orders --queues many", "Invalid value for '--queues'"),
        ("frobnicate", "No such command 'frobnicate'."),
        ("topic list --frobnicate", "No such option '--frobnicate'."),
        ("topic list --json -O plain", "--json and --output plain were both given"),
    ],
)
def test_it_is_refused_with_an_example_where_there_is_no_guess(line: str, says: str) -> None:
    done = reput(*shlex.split(line))
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.startswith(f"error: {says}")
    assert "  try:" not in done.stderr
    assert "  help:   reput help" in done.stderr


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command with its path, and its context."""
    context = click.Context(root, info_name="reput")
    groups: list[tuple[str, click.Group, click.Context]] = [("", root, context)]
    while groups:
        path, group, above = groups.pop()
        for name in group.list_commands(above):
            command = group.get_command(above, name)
            assert command is not None
            own = click.Context(command, info_name=name, parent=above)
            yield f"{path} {name}".strip(), command, own
            if isinstance(command, click.Group):
                groups.append((f"{path} {name}".strip(), command, own))


def test_the_help_of_every_command_has_examples_that_parse_and_one_line_for_the_connection() -> None:
    shared = [option.opts[0] for option in every_shared_option() if option.line is None]
    assert "--tls-ca" in shared
    for path, command, context in commands():
        text = command.get_help(context)
        names = {param.name for param in command.params if isinstance(param, SharedOption)}
        own = {param.name for param in command.params if not isinstance(param, SharedOption)}
        assert names.isdisjoint(own), f"{path}: a shared option takes the value of another"
        if path.startswith("pipeline "):
            continue  # the jobs print their own
        assert f"reput {path.split()[0]}" in text.partition("Example")[2], f"no example: {path}"
        assert "--secret-file" not in text or path in ("context add", "doctor proxy"), path
        if any(param.name == "servers" for param in command.params):
            assert text.count("reput help connection") == 1
    for path, lines in EXAMPLES.items():
        for line in lines:
            assert line.split()[: len(path.split())] == path.split()[: len(line.split())] or " " not in path
            if "--help" not in line:
                parse(line.partition(" > ")[0].partition(" < ")[0])


def test_help_and_version_are_commands() -> None:
    of_command = reput("help", "topic", "ls")
    assert of_command.returncode == 0
    assert of_command.stdout.startswith("Usage: reput topic list [OPTIONS]")
    assert "--secret-file FILE" in reput("help", "connection").stdout
    assert "-O, --output [table|json|jsonl|plain]" in reput("help", "output").stdout
    assert reput("help").stdout == reput("--help").stdout
    assert '"reput": "' in reput("version", "--json").stdout
    assert "Did you mean 'list'?" in reput("help", "topic", "lst").stderr
    assert reput("help", "topic", "list", "more").returncode == ExitCode.USAGE
