"""Numbers of the wire that nobody may change."""

from __future__ import annotations

from reput_protocol.codes import OWN_REQUEST_CODE_MIN, AckLevel, MessageSysFlag, RequestCode


def test_our_own_codes_lie_where_rocketmq_has_none() -> None:
    own = {code.name: int(code) for code in RequestCode if code >= OWN_REQUEST_CODE_MIN}
    assert own == {
        "PUT_MESSAGE": 700001,
        "LIST_DELAYED_MESSAGES": 700010,
        "CANCEL_DELAYED_MESSAGE": 700011,
        "LIST_GROUPS": 700020,
        "DESCRIBE_GROUP": 700021,
    }


def test_an_ack_level_is_its_own_text_on_the_wire() -> None:
    assert [str(level) for level in AckLevel] == ["page_cache", "flushed", "replicated"]


def test_a_client_may_set_compression_only() -> None:
    assert MessageSysFlag.PUT_MASK == MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK
