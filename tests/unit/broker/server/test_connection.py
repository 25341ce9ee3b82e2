"""One connection: every request answered once, framing errors answered, peers that leave, stall or crowd."""

from __future__ import annotations

import struct
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing

from reput_broker.observe.counters import ROLES
from reput_broker.remoting.request import ClientBusy, ClientGone, ClientSilent, Request, Response
from reput_protocol.codes import ROCKETMQ_VERSION, AckLevel, RequestCode, ResponseCode
from reput_protocol.errors import ErrorCode
from reput_protocol.wire.frames import FrameReader, decode_header, encode_frame
from reput_protocol.wire.header import ONEWAY_FLAG, Header, HeaderType
from support.connection_bench import (
    BIG,
    BROKEN,
    ECHO,
    LATER,
    REFUSED,
    SLOW,
    SLOW_AND_LATER,
    Bench,
    Peer,
    ask,
    connected,
    put,
    settled,
)


@pytest.mark.trio
async def test_all_frames_of_a_read_are_answered_with_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput_broker.server.connection.time.perf_counter", lambda: 0.0)  # their turn does not run out
    async with connected() as bench:
        bench.peer.says(*(ask(ECHO, opaque) for opaque in range(50)))
        await settled()
        assert bench.peer.answered == [(opaque, 0) for opaque in range(50)]
        assert bench.peer.sends == 1
        assert bench.answers(ECHO) == {0: 50}
        assert bench.traffic_of(ECHO).inflight == 0


@pytest.mark.trio
async def test_a_read_full_of_requests_lets_others_run_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = count(step=0.0005)
    monkeypatch.setattr("reput_broker.server.connection.time.perf_counter", lambda: next(spent))
    async with connected() as bench, trio.open_nursery() as others:
        turns = 0
        seen: set[int] = set()

        async def take_turns() -> None:
            nonlocal turns
            while not others.cancel_scope.cancel_called:
                turns += 1
                seen.add(bench.answers(ECHO)[0])
                await trio.lowlevel.checkpoint()

        bench.peer.says(*(ask(ECHO, opaque) for opaque in range(1000)))
        others.start_soon(take_turns)
        with trio.fail_after(10):
            while len(bench.peer.answered) < 1000:
                await trio.lowlevel.checkpoint()
        others.cancel_scope.cancel()
        assert len(seen) > 100, "others see it at work, not only before and after"


@pytest.mark.trio
async def test_a_large_body_is_for_messages_only() -> None:
    """Any other body is parsed at once while all clients wait, so it is refused by its size alone."""
    async with connected(body_size=4096) as bench:
        large = bytes(4097)
        bench.peer.says(ask(ECHO, 1, body=large), ask(ECHO, 2, body=large[:4096]))
        bench.peer.says(ask(SLOW_AND_LATER, 3, body=large))
        await settled()
        assert bench.peer.answered == [(1, ResponseCode.MESSAGE_ILLEGAL), (2, 0)]
        remark = bench.peer.answers[0][0].remark
        assert remark is not None
        assert "4097 bytes" in remark
        assert "limits.body_size" in remark
        bench.proceed.set()
        await settled()
        assert len(bench.held) == 1, "a put is bounded by its own limits"


@pytest.mark.trio
async def test_a_late_answer_delays_no_other() -> None:
    async with connected() as bench:
        bench.peer.says(ask(LATER, 1), ask(ECHO, 2))
        await settled()
        assert bench.peer.answered == [(2, 0)]
        assert bench.connection.is_busy
        bench.held[0].reply(Response(7))
        bench.held[0].reply(Response(8))
        assert bench.peer.answered == [(2, 0), (1, 7)], "a request is answered once"
        assert not bench.connection.is_busy


@pytest.mark.trio
async def test_answers_leave_before_a_slow_request_is_waited_for() -> None:
    async with connected() as bench:
        bench.peer.says(ask(ECHO, 1), ask(SLOW, 2), ask(ECHO, 3))
        await settled()
        assert bench.peer.answered == [(1, 0)]
        bench.proceed.set()
        await settled()
        assert bench.peer.answered == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.trio
async def test_a_slow_request_that_is_answered_later_is_held_once() -> None:
    async with connected() as bench:
        bench.peer.says(ask(SLOW_AND_LATER, 1))
        await settled()
        held = bench.counters.buffered_bytes["read"]
        bench.proceed.set()
        await settled()
        assert 0 < bench.counters.buffered_bytes["read"] < held, "the read is freed, the request waits"
        bench.held[0].reply(Response())
        assert bench.counters.buffered_bytes["read"] == 0
        assert bench.peer.answered == [(1, 0)]


@pytest.mark.trio
async def test_a_held_request_counts_where_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected() as bench:

        def park(request: Request) -> None:
            bench.held.append(request)
            request.note_held()

        monkeypatch.setitem(bench.connection._handling._handlers, LATER, park)
        bench.peer.says(ask(LATER, 1))
        await settled()
        assert bench.counters.buffered_bytes["read"] == 0
        assert bench.connection.is_busy, "it is not idle"
        bench.held[0].reply(Response())
        assert bench.peer.answered == [(1, 0)]
        assert not bench.connection.is_busy


@pytest.mark.trio
@pytest.mark.parametrize("ends", ["answered", "closed by the peer", "closed by the broker"])
async def test_a_request_that_is_held_later_counts_where_it_is_held(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """As a pop that has read from the disk first, and found nothing."""
    async with connected() as bench:
        bench.peer.says(ask(LATER, 1))
        await settled()
        (request,) = bench.held
        assert bench.counters.buffered_bytes["read"] == bench.memory.total == request.cost
        request.note_held()
        assert bench.counters.buffered_bytes["read"] == bench.memory.total == 0
        assert bench.connection.is_busy
        if ends == "closed by the peer":
            bench.peer.ends()
            bench.peer.close()
            await settled()
        elif ends == "closed by the broker":
            bench.connection.close("shutdown")
        request.reply(Response())
        request.note_held()
        assert bench.counters.buffered_bytes["read"] == bench.memory.total == 0
        assert bench.traffic_of(LATER).inflight == 0


@pytest.mark.trio
async def test_refusals_and_defects_are_answers(capsys: pytest.CaptureFixture[str]) -> None:
    async with connected() as bench:
        bench.peer.says(ask(REFUSED, 1), ask(BROKEN, 2), ask(4711, 3), ask(ECHO, 4))
        await settled()
        codes = dict(bench.peer.answered)
        assert codes[1] == ErrorCode.NO_TOPIC.response_code
        assert codes[2] == ErrorCode.INTERNAL.response_code
        assert codes[3] == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert codes[4] == 0
        remark = next(header.remark for header, _ in bench.peer.answers if header.opaque == 2)
        incident = str(remark).split("incident ")[1].split(" ")[0]
        assert incident in capsys.readouterr().out


@pytest.mark.trio
async def test_a_short_request_waits_for_one_turn_and_not_for_those_of_all_busy_peers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reput_broker.server.connection._HANDLING_S", 0.0)  # each request is a turn
    async with connected() as quick, trio.open_nursery() as nursery:
        busy = [Bench(Peer(), nursery, beside=quick) for _ in range(30)]
        for bench in busy:
            nursery.start_soon(bench.connection.run)
            bench.peer.says(*(ask(ECHO, opaque) for opaque in range(100)))

        def answered() -> int:
            return sum(bench.peer.sends for bench in busy)

        while answered() < 60:
            await trio.lowlevel.checkpoint()
        before = answered()
        quick.peer.says(ask(ECHO, 1))
        while not quick.peer.got:
            await trio.lowlevel.checkpoint()
        assert answered() - before < 10
        await settled()
        assert [len(bench.peer.answers) for bench in busy] == [100] * 30
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_oneway_requests_and_answers_of_the_peer_get_no_answer() -> None:
    async with connected() as bench:
        bench.peer.says(ask(ECHO, 1, ONEWAY_FLAG), ask(LATER, 2, ONEWAY_FLAG), ask(ECHO, 3, 1), ask(ECHO, 4))
        await settled()
        assert bench.peer.answered == [(4, 0)]
        assert bench.answers(ECHO) == {0: 2}
        assert bench.traffic_of(ECHO).inflight == bench.traffic_of(LATER).inflight == 0


@pytest.mark.trio
async def test_puts_of_a_read_are_appended_together_and_dispatched_after_their_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("reput_broker.server.connection._HANDLING_S", 60.0)
    async with connected() as bench:
        bench.peer.says(*(put(opaque) for opaque in range(5)), ask(ECHO, 9), put(6), put(7))
        await settled()
        assert [len(puts) for puts in bench.appended] == [5, 2], "what may look at them comes after them"
        assert [opaque & 0xFFFFF for opaque, _ in bench.peer.answered] == [0, 1, 2, 3, 4, 9, 6, 7]
        assert bench.after_puts == [len(bench.peer.got)]
        traffic = bench.counters.requests[HeaderType.MSGPACK, RequestCode.PUT_MESSAGE]
        assert bench.answers(RequestCode.PUT_MESSAGE, HeaderType.MSGPACK) == {0: 7}
        assert traffic.inflight == 0


@pytest.mark.trio
async def test_puts_of_all_ack_levels_are_appended_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput_broker.server.connection._HANDLING_S", 60.0)
    async with connected() as bench:
        levels = [AckLevel.PAGE_CACHE] * 2 + [AckLevel.FLUSHED] * 3 + [AckLevel.PAGE_CACHE]
        bench.peer.says(*(put(opaque, ack) for opaque, ack in enumerate(levels)))
        await settled()
        assert [len(puts) for puts in bench.appended] == [6]
        assert [opaque & 0xFFFFF for opaque, _ in bench.peer.answered] == [0, 1, 5]
        assert bench.connection.is_busy
        for one in bench.appended[0][2:5]:
            one.request.reply(Response())
            one.request.reply(Response(1))
        assert len(bench.peer.answers) == 6
        assert not bench.connection.is_busy


@pytest.mark.trio
async def test_puts_that_wait_for_a_log_file_delay_later_requests_and_no_earlier_ones() -> None:
    async with connected() as bench:
        bench.waits_to_append = proceed = trio.Event()
        bench.peer.says(ask(ECHO, 1), put(2), put(3), ask(ECHO, 4))
        await settled()
        assert bench.peer.answered == [(1, 0)]
        assert bench.counters.buffered_bytes["read"] > 0
        proceed.set()
        await settled()
        assert [opaque & 0xFFFFF for opaque, _ in bench.peer.answered] == [1, 2, 3, 4]
        assert bench.counters.buffered_bytes["read"] == 0


@pytest.mark.trio
async def test_a_peer_that_leaves_while_its_puts_wait_takes_those_with_it_that_were_not_appended() -> None:
    async with connected() as bench:
        bench.waits_to_append = trio.Event()
        bench.peer.says(put(1), ask(ECHO, 2), put(3))
        await settled()
        bench.connection.close("peer")
        await settled()
        assert bench.appended == []
        traffic = bench.counters.requests[HeaderType.MSGPACK, RequestCode.PUT_MESSAGE]
        assert bench.answers(RequestCode.PUT_MESSAGE, HeaderType.MSGPACK) == {0: 0}
        assert traffic.inflight == 0


@pytest.mark.trio
@pytest.mark.parametrize(
    ("data", "reason", "code"),
    [
        (struct.pack(">II", 1 << 30, 0), "too_large", ErrorCode.TOO_LARGE),
        (struct.pack(">II", 100, 200), "malformed", ErrorCode.MALFORMED),
        (struct.pack(">II", 4 + 2_000_000, 2_000_000), "too_large", ErrorCode.TOO_LARGE),
        (struct.pack(">II", 6, 77 << 24 | 2) + b"\xc1\xc1", "malformed", ErrorCode.MALFORMED),
        (struct.pack(">II", 6, 2) + b"{{", "malformed", ErrorCode.MALFORMED),
        (struct.pack(">II", 6, 9 << 24 | 2) + b"{}", "unknown_header_type", ErrorCode.MALFORMED),
    ],
)
async def test_a_framing_error_is_answered_after_earlier_requests_and_ends_the_connection(
    data: bytes, reason: str, code: ErrorCode
) -> None:
    async with connected() as bench:
        bench.peer.says(ask(ECHO, 1), data)
        await settled()
        assert bench.peer.closed
        (first, _), (last, _) = bench.peer.answers
        assert (first.opaque, first.code) == (1, 0)
        assert (last.opaque, last.code, last.version) == (0, code.response_code, ROCKETMQ_VERSION)
        assert str(last.remark).endswith("the connection is closed")
        assert sum(bench.counters.protocol_errors.values()) == 1
        assert any(reason in key for key in bench.counters.protocol_errors)
        assert bench.ended == [bench.connection]
        assert bench.traffic.closed["malformed"] == 1


@pytest.mark.trio
async def test_a_peer_that_leaves_takes_its_open_requests_with_it() -> None:
    async with connected() as bench:
        bench.peer.says(ask(LATER, 1), put(2, AckLevel.FLUSHED))
        await settled()
        bench.connection.close("peer")
        await settled()
        assert bench.traffic_of(LATER).inflight == 0
        assert bench.counters.requests[HeaderType.MSGPACK, RequestCode.PUT_MESSAGE].inflight == 0
        assert bench.held[0].is_answered, "nobody answers it any more"
        sent = bytes(bench.peer.got)
        bench.held[0].reply(Response(0))
        bench.appended[0][0].request.reply(Response(0))
        assert bytes(bench.peer.got) == sent
        assert bench.traffic.open == 0


@pytest.mark.trio
async def test_a_peer_that_only_stops_sending_still_gets_its_answers(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as bench:
        bench.peer.says(ask(LATER, 1))
        bench.peer.ends()
        await trio.sleep(0.5)
        assert not bench.peer.closed
        bench.held[0].reply(Response(0))
        await trio.sleep(0.1)
        assert bench.peer.answered == [(1, 0)]
        assert bench.peer.closed
        assert bench.traffic.closed["peer"] == 1


@pytest.mark.trio
async def test_an_answer_that_does_not_come_keeps_a_half_closed_connection_for_a_second_only(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected() as bench:
        bench.peer.says(ask(LATER, 1))
        bench.peer.ends()
        started_at = trio.current_time()
        with trio.fail_after(30):
            while not bench.ended:
                await trio.sleep(0.01)
        assert trio.current_time() - started_at == pytest.approx(1.0, abs=0.1)


@pytest.mark.trio
async def test_a_peer_that_does_not_read_is_not_read_from(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(Peer(room=0), connection_buffer="64KiB") as bench:
        bench.peer.says(ask(BIG, 1))
        bench.peer.says(ask(ECHO, 2))
        await trio.sleep(1)
        assert bench.answers(ECHO) == {0: 0}, "the second request is not looked at"
        assert bench.memory.total > 64 * 1024
        bench.peer.reads()
        await trio.sleep(1)
        assert bench.peer.answered == [(1, 0), (2, 0)]
        assert bench.memory.total == 0
        assert bench.counters.backpressure_seconds["write_queue"] >= 0


@pytest.mark.trio
async def test_many_large_answers_to_one_read_are_made_no_faster_than_the_peer_takes_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with connected(Peer(room=0), connection_buffer="1MiB") as bench:
        bench.peer.says(*(ask(BIG, opaque) for opaque in range(100)))
        await trio.sleep(1)
        assert bench.memory.total < 1.5 * (1 << 20)
        while bench.memory.total:
            bench.peer.reads(500_000)
            await trio.sleep(0.1)
            assert bench.memory.total < 1.5 * (1 << 20)
        assert bench.peer.answered == [(opaque, 0) for opaque in range(100)]


@pytest.mark.trio
async def test_a_peer_that_is_owed_very_many_answers_is_not_read_from(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(connection_buffer="64KiB") as bench:
        bench.peer.says(*(ask(LATER, opaque) for opaque in range(200)))
        bench.peer.says(ask(ECHO, 999))
        await trio.sleep(1)
        assert len(bench.held) >= 64
        assert bench.counters.buffered_bytes["read"] > 64 * 1024
        assert bench.peer.answered == []
        while bench.held:
            for _ in range(len(bench.held)):
                bench.held.pop().reply(Response(0))
            await trio.sleep(1)
        assert len(bench.peer.answered) == 201
        assert bench.counters.buffered_bytes["read"] == 0
        bench.peer.says(ask(LATER, 1))
        await trio.sleep(1)
        bench.connection.close("peer")
        assert bench.counters.buffered_bytes["read"] == 0


@pytest.mark.trio
async def test_an_answer_that_does_not_fit_a_frame_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async with connected() as bench:
        bench.peer.says(ask(LATER, 1))
        await settled()
        bench.held[0].reply(Response(0, body=bytes(17 << 20)))
        assert bench.peer.answered == [(1, ErrorCode.TOO_LARGE.response_code)]
        assert "response_too_large" in capsys.readouterr().out


@pytest.mark.trio
async def test_an_answer_that_cannot_be_sent_is_an_internal_error_of_that_request_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with connected() as bench:
        bench.peer.says(ask(LATER, 1), ask(ECHO, 3))
        await settled()
        bench.held[0].reply(Response(0, {"ids": "\ud800"}))
        assert bench.peer.answered == [(3, 0), (1, ErrorCode.INTERNAL.response_code)]
        assert not bench.peer.closed
        assert "response_not_sent" in capsys.readouterr().out


@pytest.mark.trio
async def test_bytes_that_left_are_counted_while_the_connection_is_open(autojump_clock: trio.testing.MockClock) -> None:
    async with connected(Peer(room=100)) as bench:
        bench.peer.says(ask(BIG, 1))
        await trio.sleep(0.1)
        assert bench.traffic.bytes_out == 100
        bench.peer.reads()
        await trio.sleep(0.1)
        assert bench.traffic.bytes_out == len(bench.peer.got) > 100_000


@pytest.mark.trio
async def test_an_unfinished_frame_counts_as_held_until_it_is_whole_or_the_peer_has_gone() -> None:
    async with connected() as bench:
        whole = ask(ECHO, 1, body=bytes(5000))
        bench.peer.says(whole[:3000])
        await settled()
        assert 3000 <= bench.counters.buffered_bytes["read"] < 4000
        bench.peer.says(whole[3000:])
        await settled()
        assert bench.counters.buffered_bytes["read"] == 0
        bench.peer.says(whole[:3000])
        await settled()
        bench.connection.close("peer")
        assert bench.counters.buffered_bytes["read"] == 0
        assert bench.peer.answered == [(1, 0)]


@pytest.mark.parametrize(
    ("code", "role"),
    [
        (RequestCode.SEND_MESSAGE_V2, "producer"),
        (RequestCode.PULL_MESSAGE, "consumer"),
        (RequestCode.GET_BROKER_CONFIG, "admin"),
        (RequestCode.REGISTER_BROKER, "broker"),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, "unknown"),  # any peer asks it
    ],
)
@pytest.mark.trio
async def test_the_role_of_a_connection_is_that_of_its_first_sender(code: int, role: str) -> None:
    async with connected() as bench:
        bench.peer.says(ask(code, 1))
        await settled()
        assert bench.traffic.open_by_role == {**dict.fromkeys(ROLES, 0), role: 1}
        bench.connection.note_role("admin")
        assert bench.traffic.open_by_role[role if role != "unknown" else "admin"] == 1


# Requests of the broker to the client


def told(peer: Peer) -> list[Header]:
    return [header for header, _ in peer.answers if not header.is_response]


def reply(opaque: int, code: int = 0, body: bytes = b"", kind: int = HeaderType.JSON) -> bytes:
    return encode_frame(Header(code, opaque, 1, "so", {"k": "v"}), kind, body)


@pytest.mark.trio
@pytest.mark.parametrize("kind", list(HeaderType))
async def test_a_request_of_the_broker_leaves_at_once_in_the_header_type_last_seen(kind: HeaderType) -> None:
    async with connected() as bench:
        bench.peer.says(ask(ECHO, 1), ask(ECHO, 2, kind=kind))
        await settled()
        assert bench.connection.send_request(40, {"consumerGroup": "g", "n": 7})
        frame = FrameReader().receive_data(bytes(bench.peer.got))[-1]
        header = decode_header(frame.header_type, frame.header)
        assert frame.header_type == kind
        assert (header.code, header.is_oneway, header.is_response) == (40, True, False)
        assert header.opaque >= 1 << 30
        assert header.ext == {"consumerGroup": "g", "n": 7 if kind is HeaderType.MSGPACK else "7"}


@pytest.mark.trio
async def test_a_call_gets_the_answer_with_its_own_number(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as bench:
        answers: dict[int, Any] = {}

        async def call(code: int) -> None:
            answers[code] = await bench.connection.call(code, {}, b"asked", timeout_s=10.0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, 307)
            nursery.start_soon(call, 309)
            await settled()
            opaques = {header.code: header.opaque for header in told(bench.peer)}
            assert not any(header.is_oneway for header in told(bench.peer))
            # A request of the client's with the same number, an answer to nothing, the answers the wrong way round.
            bench.peer.says(ask(ECHO, opaques[307]), reply(5), reply(opaques[309], 9, b"second"))
            bench.peer.says(reply(opaques[307], 7, b"first"), reply(opaques[307], 8, b"again"))
        assert {code: (a.code, a.body, a.remark, a.ext) for code, a in answers.items()} == {
            307: (7, b"first", "so", {"k": "v"}),
            309: (9, b"second", "so", {"k": "v"}),
        }
        assert bench.peer.answered[-1] == (opaques[307], 0)


@pytest.mark.trio
async def test_a_client_that_never_answers_is_not_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    async with connected() as bench:
        started_at = trio.current_time()
        with pytest.raises(ClientSilent, match="within 10 s"):
            await bench.connection.call(307, {}, timeout_s=10.0)
        assert trio.current_time() - started_at == 10.0
        late = told(bench.peer)[0].opaque
        bench.peer.says(reply(late), ask(ECHO, 1))
        await settled()
        assert bench.peer.answered[-1] == (1, 0), "an answer that comes too late is dropped"


@pytest.mark.trio
async def test_calls_end_with_the_connection() -> None:
    async with connected() as bench, trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(ClientGone, match="before it responded"):
                await bench.connection.call(307, {}, timeout_s=1000.0)

        for _ in range(3):
            nursery.start_soon(call)
        await settled()
        bench.peer.ends()
    assert not bench.connection.send_request(40, {})
    with pytest.raises(ClientGone, match="has ended"):
        await bench.connection.call(307, {}, timeout_s=1.0)


@pytest.mark.trio
async def test_one_client_owes_a_bounded_number_of_answers() -> None:
    async with connected() as bench, trio.open_nursery() as nursery:

        async def call() -> None:
            with pytest.raises(ClientGone):
                await bench.connection.call(307, {}, timeout_s=1000.0)

        for _ in range(64):
            nursery.start_soon(call)
        await settled()
        with pytest.raises(ClientBusy):
            await bench.connection.call(307, {}, timeout_s=1000.0)
        assert len(told(bench.peer)) == 64
        bench.connection.close("shutdown")


@pytest.mark.trio
async def test_a_client_that_reads_nothing_is_sent_no_more_requests() -> None:
    async with connected(Peer(room=10), connection_buffer=65536) as bench:
        bench.peer.says(ask(BIG, 1))
        await settled()
        assert not bench.connection.send_request(40, {})
        with pytest.raises(ClientGone, match="takes nothing"):
            await bench.connection.call(307, {}, timeout_s=1.0)
        bench.peer.reads()
        await settled()
        assert bench.connection.send_request(40, {})
