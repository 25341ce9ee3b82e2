"""Numbers of the wire, which must not change."""

from __future__ import annotations

from reput_protocol.codes import OWN_REQUEST_CODE_MIN, AckLevel, MessageSysFlag, RequestCode


def test_our_own_codes_are_none_of_rocketmqs() -> None:
    own = {code.name: int(code) for code in RequestCode if code >= OWN_REQUEST_CODE_MIN}
    assert own == {
        "PUT_MESSAGE": 700001,
        "LIST_DELAYED_MESSAGES": 700010,
        "CANCEL_DELAYED_MESSAGE": 700011,
        "LIST_TRANSACTIONS": 700012,
        "LIST_GROUPS": 700020,
        "DESCRIBE_GROUP": 700021,
        "LIST_TOPICS": 700022,
        "FETCH_RECORDS": 700030,
        "QUERY_QUEUE_BOUNDS": 700031,
        "STAGE_RECORDS": 700040,
        "END_STAGING": 700041,
        "COMMIT_STAGED": 700042,
        "ABORT_STAGED": 700043,
        "QUERY_STAGED": 700044,
        "QUERY_REPLICA_STATE": 700050,
        "PROMOTE_BROKER": 700051,
        "GET_SINK_BATCHES": 700060,
        "AWAIT_TABLE_CHANGES": 700061,
        "GET_GROUP_MEMBERS": 700062,
        "GET_ALL_SCHEDULES": 700063,
        "DESCRIBE_BROKER": 700070,
        "LIST_CLIENTS": 700071,
        "GET_CONFIG": 700072,
        "SET_CONFIG": 700073,
        "RELOAD_CONFIG": 700074,
        "SET_INTAKE": 700075,
        "FLUSH_LOG": 700076,
        "DISCONNECT_CLIENT": 700078,
        "SIGNATURE_CHALLENGE": 700080,
        "PUT_SCHEDULE": 700090,
        "CHANGE_SCHEDULE": 700091,
        "LIST_SCHEDULES": 700092,
        "REPLAY_DEAD_LETTERS": 700100,
        "QUERY_REPLAYS": 700101,
        "READ_HISTORY": 700110,
    }


def test_an_ack_level_is_its_own_text_on_the_wire() -> None:
    assert [str(level) for level in AckLevel] == ["page_cache", "flushed", "replicated"]


def test_a_client_may_set_compression_only() -> None:
    assert MessageSysFlag.PUT_MASK == MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK
