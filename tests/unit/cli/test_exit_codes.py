"""Exit codes of commands that send or ask, and what they print."""

from __future__ import annotations

import pytest

from reput_cli import health, produce
from reput_cli.failures import CommandFailed, worded
from reput_cli.main import main
from reput_cli.options import Settings
from reput_cli.produce import _failed_at, _send_lines
from reput_client.blocking import Message
from reput_client.errors import PartlySent, RequestTimeout, SendOutcomeUnknown
from reput_client.receipts import SendReceipt
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ErrorCode, PermissionDenied
from reput_protocol.exit_codes import ExitCode


def test_a_timeout_and_partial_work_have_different_codes() -> None:
    assert worded(RequestTimeout("route", 1.0)).code is ExitCode.TIMEOUT
    assert (int(ExitCode.TIMEOUT), int(ExitCode.PARTIAL)) == (6, 8)
    assert len(ExitCode.__members__) == len(ExitCode)  # none is another's alias


def test_one_message_is_stored() -> None:
    failed = [_failed_at(line, stored, CommandFailed("no")) for line, stored in ((1, 0), (2, 1), (3, 2))]
    assert [failure.what for failure in failed] == [
        "line 1: no; 0 messages are stored",
        "line 2: no; 1 message is stored",
        "line 3: no; 2 messages are stored",
    ]
    assert failed[1].remedy == "correct line 2, and send it and the lines after it again"


def test_a_send_without_an_answer_is_looked_for_by_its_id() -> None:
    sent = SendOutcomeUnknown("orders", 2, ["7F000001"], "the broker closed the connection")
    assert worded(sent).remedy == "reput message find orders 7F000001 to see whether it was stored"
    without_ids = SendOutcomeUnknown("orders", 2, [], "no response")
    assert worded(without_ids).remedy == "reput consume orders -o -10 to see whether it was stored"


def test_lines_of_which_only_some_are_known_to_be_stored_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = SendOutcomeUnknown("orders", 2, ["7F000001"], "the broker closed the connection")
    stored = SendReceipt("orders", 2, 0, 0, 0, "127.0.0.1:10911", AckLevel.FLUSHED)
    receipts = [stored, stored, None, stored, None, None]

    def send(_: list[Message]) -> None:
        raise PartlySent(receipts, {2: sent, 4: sent})

    monkeypatch.setattr(produce, "_line_batches", lambda: [[b"x"] * 6])
    with pytest.raises(CommandFailed) as failure:
        _send_lines(lambda line: Message("orders", line), send)
    assert failure.value.what.startswith("line 3: send to orders/2: outcome unknown")
    assert failure.value.what.endswith("; 3 messages are stored: all before line 3, and at least 1 of lines 3 to 5")
    assert failure.value.remedy == (
        "reput message find orders 7F000001 to see whether it was stored; without --no-deduplicate the command repeats "
        "such sends until --timeout, which can be longer"
    )


def test_who_is_not_known_is_told_how_to_name_a_user() -> None:
    unknown = worded(PermissionDenied(ErrorCode.UNAUTHENTICATED, "this broker takes requests of its users only"))
    assert unknown.remedy == "--user NAME --secret-file FILE, or REPUT_USER and REPUT_SECRET_FILE"
    lacking = worded(PermissionDenied(ErrorCode.NO_PERMISSION, "user 'a' lacks the right"))
    assert (lacking.code, lacking.remedy) == (unknown.code, None)


_DEFECT = KeyError("a defect")


def _fail(*_: object, **__: object) -> None:
    raise _DEFECT


@pytest.mark.parametrize("flags", ["-vv", "-v -v", "--verbose --verbose", "-qvv"])
def test_a_traceback_is_printed_if_v_is_given_twice(
    flags: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Settings, "admin", _fail)
    monkeypatch.setattr("sys.argv", ["reput", "topic", "list", *flags.split()])
    with pytest.raises(SystemExit):
        main()
    assert "error: KeyError" in (printed := capsys.readouterr().err)
    assert "in _fail" in printed


@pytest.mark.parametrize("flags", ["", "-v"])
def test_an_unexpected_error_says_how_to_see_where_it_was_raised(
    flags: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Settings, "admin", _fail)
    monkeypatch.setattr("sys.argv", ["reput", "topic", "list", *flags.split()])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == ("error: KeyError: 'a defect'\n  try:    the same command with -vv shows where\n")


def test_a_command_without_v_prints_where_an_unexpected_error_was_raised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health.command, "callback", _fail)
    monkeypatch.setattr("sys.argv", ["reput", "health"])
    with pytest.raises(SystemExit):
        main()
    assert "in _fail" in (printed := capsys.readouterr().err)
    assert "-vv" not in printed
