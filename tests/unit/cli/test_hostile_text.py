"""Names and bodies that would control the terminal are escaped in every form of output."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from reput_cli import rendering
from reput_cli.failures import CommandFailed, report_failure
from reput_cli.group import command as group_command
from reput_cli.options import Settings
from reput_cli.output import Printer
from reput_client.received import ReceivedMessage
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.commands.group_description import GroupDescription, GroupMember, GroupSummary
from reput_protocol.printable import printable_lines
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record, encode_record

HOSTILE = "a\x1b[2J\u202eb\x9b31m\r\n  try:    rm"
FORMS = ("table", "plain", "json", "jsonl")


class FakeAdmin:
    def __init__(self, *_arguments: object, **_options: object) -> None: ...

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def describe_group(self, name: str) -> GroupDescription:
        return GroupDescription(
            GroupSummary(name, members=1),
            members=[GroupMember(HOSTILE, HOSTILE, HOSTILE)],
            subscriptions=[SubscriptionData(HOSTILE, HOSTILE, expression_type=HOSTILE)],
        )


def is_safe(text: str) -> bool:
    return printable_lines(text) == text and "\n  try:    rm" not in text


@pytest.mark.parametrize("form", FORMS)
def test_members_of_a_group(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr("reput_client.blocking.Admin", FakeAdmin)
    result = CliRunner().invoke(group_command, ["members", "g", "-O", form], catch_exceptions=False)
    assert "\\u202e" in result.stderr
    assert is_safe(result.stderr)
    assert is_safe(result.stdout)


@pytest.mark.parametrize("form", FORMS)
def test_every_cell_and_key(capsys: pytest.CaptureFixture[str], form: str) -> None:
    printer = Printer(Settings("", 5.0, form, color=False, quiet=False, yes=False))
    printer.rows(["name"], [(HOSTILE,)])
    printer.fields({HOSTILE: HOSTILE})
    printer.note(HOSTILE)
    captured = capsys.readouterr()
    assert is_safe(captured.out)
    assert is_safe(captured.err)


def test_brackets_in_a_table_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(Settings("", 5.0, "table", color=False, quiet=False, yes=False))
    printer.rows(["name"], [("[/nothing] [red]x :smile:",)])
    assert "[/nothing] [red]x :smile:" in capsys.readouterr().out


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    report_failure(CommandFailed("what \x1b[2J", reason="why \u202e", remedy=HOSTILE))
    assert is_safe(capsys.readouterr().err)


@pytest.mark.parametrize(
    "render", [rendering.json_line, rendering.block, rendering.plain]
    + [rendering.compile_format(f"%{text}") for text in ("t", "i", "I", "k", "T", "v", "h", "v{json}")]
)  # fmt: skip
def test_messages(render: Any) -> None:
    properties = {"TAGS": "\x9b31m", "KEYS": "\u202ekey", "UNIQ_KEY": "\x1b[0m", "p": "\u2066"}
    record = encode_record(Record("orders", HOSTILE.encode(), properties=encode_properties(properties)))
    assert printable_lines(line := render(ReceivedMessage.of_record(bytes(record)))) == line
    if render is rendering.json_line:
        assert json.loads(line)["body"] == HOSTILE
