"""The client's errors keep their facts, also through a pickle."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from reput_client import PostsFailed, Producer, errors
from reput_client.produce.receipts import SendReceipt
from reput_protocol.codes import AckLevel
from reput_protocol.errors import ReputError


def test_facts_survive_a_pickle() -> None:
    receipt = SendReceipt("t", 0, 1, 2, 3, "127.0.0.1:1", AckLevel.PAGE_CACHE)
    for error in (
        errors.ConnectFailed("a:1", "refused"),
        errors.SendOutcomeUnknown("t", 1, ["id"], "no answer"),
        errors.AckNotReached("flushed", [receipt], 10, "slow"),
        errors.PartlySent([receipt, None], {1: errors.ClientClosed()}),
        PostsFailed([], 3),
        errors.DamagedMessage("t", 1, 2, "bad"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert isinstance(copy, ReputError)
        assert str(copy) == str(error)
        assert vars(copy).keys() == vars(error).keys()


def test_the_text_of_a_partly_sent_call() -> None:
    receipt = SendReceipt("t", 0, 1, 2, 3, "127.0.0.1:1", AckLevel.PAGE_CACHE)
    error = errors.PartlySent([receipt, None], {1: errors.ClientClosed("closed")})
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
