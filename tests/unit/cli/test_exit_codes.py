from __future__ import annotations

from reput_cli.failures import CommandFailed, worded
from reput_cli.produce import _failed_at
from reput_client.errors import RequestTimeout, SendOutcomeUnknown
from reput_protocol.exit_codes import ExitCode


def test_a_timeout_and_partial_work_have_different_codes() -> None:
    assert worded(RequestTimeout("route", 1.0)).code is ExitCode.TIMEOUT
    assert (int(ExitCode.TIMEOUT), int(ExitCode.PARTIAL)) == (6, 8)
    assert len(ExitCode.__members__) == len(ExitCode)  # none is another's alias


def test_one_message_is_stored() -> None:
    failed = [
        _failed_at(line, stored, CommandFailed("no")).remedy for line, stored in ((1, 0), (2, 1), (3, 2))
    ]
    assert failed == ["0 messages are stored", "1 message is stored", "2 messages are stored"]


def test_a_send_without_an_answer_is_looked_for_by_its_id() -> None:
    sent = SendOutcomeUnknown("orders", 2, ["7F000001"], "the broker closed the connection")
    assert worded(sent).remedy == "reput message find orders 7F000001 to see whether it was stored"
    without_ids = SendOutcomeUnknown("orders", 2, [], "no answer")
    assert worded(without_ids).remedy == "reput consume orders -o -10 to see whether it was stored"
