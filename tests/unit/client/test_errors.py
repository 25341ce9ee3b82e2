"""The client's errors: their facts, which copies keep, their standard base classes, and when a repetition helps."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reput_client import PostsFailed, Producer, errors
from reput_client.receipts import SendReceipt
from reput_protocol.codes import AckLevel
from reput_protocol.errors import BrokerError, ErrorCode, ReputError

RECEIPT = SendReceipt("t", 0, 1, 2, 3, "127.0.0.1:1", AckLevel.PAGE_CACHE)
COPIES: list[Callable[[Any], Any]] = [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy]


@pytest.mark.parametrize(
    "error",
    [
        errors.ConnectFailed("a:1", "refused", announced_for="b"),
        errors.NotABroker("a:1", "it speaks HTTP"),
        errors.TlsRefused("a:1", "TLS: expired", "renew it"),
        errors.ConnectionLost("a:1", "reset"),
        errors.RequestTimeout("pull", 1.5, errors.ConnectionLost("a:1", "reset")),
        errors.ReplyTimeout("t", "id", 1.0, is_stored=True),
        errors.SendOutcomeUnknown("t", 1, ["id"], "no response"),
        errors.AckNotReached("flushed", [RECEIPT], 10, "slow"),
        errors.PartlySent([RECEIPT, None], {1: errors.ClientClosed()}),
        errors.BrokersFailed("x", {"a": errors.ConnectFailed("a:1", "refused")}, []),
        errors.BrokerBusy(ErrorCode.BUSY, "BUSY: later"),
        PostsFailed([], 3),
        errors.DamagedMessage("t", 1, 2, "bad"),
        errors.InvalidHandle("t", 0, 1, "its time has ended"),
        errors.PartlyAcknowledged(3, {1: errors.ConnectFailed("a:1", "refused")}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_copy_has_the_text_and_the_facts(error: ReputError) -> None:
    """Some are an `OSError` too, whose own pickling would call the constructor with the text."""
    assert error.args == (str(error),)
    for copied in (duplicate(error) for duplicate in COPIES):
        assert type(copied) is type(error)
        assert (str(copied), copied.args) == (str(error), error.args)
        assert {name: str(fact) for name, fact in vars(copied).items()} == {
            name: str(fact) for name, fact in vars(error).items()
        }
        assert copied.retryable is error.retryable


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.ConnectFailed, ConnectionError),
        (errors.ConnectionLost, ConnectionError),
        (errors.RequestTimeout, TimeoutError),
        (errors.ReplyTimeout, TimeoutError),
    ],
)
def test_programs_may_catch_pythons_own_errors(kind: type[ReputError], base: type[OSError]) -> None:
    assert issubclass(kind, base)
    others = {ConnectionError, TimeoutError} - {base}
    assert not any(issubclass(kind, other) for other in others)


def test_the_documentation_says_which_errors_are_worth_a_repetition() -> None:
    """Each error of the client that is not a refusal has one row; a refusal depends on its reason."""
    text = (Path(__file__).parents[3] / "docs/client.md").read_text()
    rows = re.findall(r"^\| (`.+`).* \| (yes|no|depends) \|", text, re.MULTILINE)
    documented = {name: answer for names, answer in rows for name in re.findall(r"`(\w+)`", names)}
    expected = {}
    for name in errors.__all__:
        kind = getattr(errors, name)
        if issubclass(kind, ReputError) and (not issubclass(kind, BrokerError) or kind is BrokerError):
            expected[name] = "yes" if kind.retryable else "no"
    del expected["ReputError"]
    expected |= dict.fromkeys(("BrokerError", "BrokersFailed", "PartlyAcknowledged"), "depends")
    assert documented == expected
    assert sum(len(names.split(", ")) for names, _ in rows) == len(documented)


def test_a_failure_of_several_may_be_repeated_if_each_may() -> None:
    away, wrong = errors.ConnectFailed("a:1", "refused"), errors.TlsRefused("b:1", "no", "renew it")
    assert errors.BrokersFailed("x", {"a": away}, ["c"]).retryable
    assert not errors.BrokersFailed("x", {"a": away, "b": wrong}, []).retryable
    late = errors.InvalidHandle("t", 0, 1, "its time has ended")
    assert errors.PartlyAcknowledged(3, {1: away}).retryable
    assert not errors.PartlyAcknowledged(3, {1: away, 2: late}).retryable


def test_the_text_of_a_partly_sent_call() -> None:
    error = errors.PartlySent([RECEIPT, None], {1: errors.ClientClosed("closed")})
    assert str(error) == "1 message stored, then message 1 failed: closed"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tls": "ca.pem"}, "tls must be TLS"),
        ({"tls": True}, "tls must be TLS"),
        ({"credentials": ("alice", "hidden")}, "credentials must be Credentials(user, secret), not a tuple"),
    ],
)
def test_a_client_says_what_tls_and_credentials_have_to_be(options: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as refused:
        Producer("127.0.0.1:1", **options)
    assert text in str(refused.value)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "topic", "text"),
    [
        ("b", "t", "no master of broker 'b' of topic 't' is known"),
        ("b", "", "no master of broker 'b' is known"),
        ("", "t", "no master of any broker of topic 't' is known"),
        ("", "", "no master of any broker is known"),
    ],
)
def test_a_missing_master_is_named_as_far_as_it_is_known(name: str, topic: str, text: str) -> None:
    assert str(errors.BrokerNotFound(name, topic)).startswith(f"{text}; start it")
