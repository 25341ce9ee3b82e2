"""Memory for clients is bounded, and only the client that holds too much for too long is affected."""

from __future__ import annotations

import struct
import sys
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from reput_broker.remoting.request import Response
from reput_broker.server.memory import SHARE_MIN
from reput_broker.store.message_reader import MessageReader
from reput_protocol.codes import RequestCode
from reput_protocol.commands.pull import FetchRecordsHeader, PullMessageHeader
from reput_protocol.wire.frames import FRAME_BYTES_MAX
from reput_protocol.wire.header import HeaderType
from support.broker_bench import broker_bench
from support.connection_bench import BIG, ECHO, LATER, SLOW, Bench, Peer, ask, connected, settled
from support.tasks import run_by_the_clock

MIB = 1 << 20
served = partial(connected, body_size="1MiB")
FRAME = ask(ECHO, 1, body=bytes(600_000))
BEGUN = struct.pack(">II", FRAME_BYTES_MAX - 4, 100) + bytes(100)
"""The beginning of the largest frame."""


def more(bench: Bench, nursery: trio.Nursery, count: int, room: int = 1 << 30) -> list[Bench]:
    """Connect more peers to the same broker."""
    benches = [Bench(Peer(room), nursery, beside=bench) for _ in range(count)]
    for each in benches:
        nursery.start_soon(each.connection.run)
    return benches


async def answers_at_once(bench: Bench) -> bool:
    """Whether a request is answered without any time passing."""
    opaque = len(bench.peer.answered)
    bench.peer.says(ask(ECHO, opaque))
    await settled()
    return bench.peer.answered[-1] == (opaque, 0)


async def look_after(benches: list[Bench], seconds: int) -> None:
    for _ in range(seconds):
        await trio.sleep(1)
        for bench in benches:
            bench.connection.look_after(trio.current_time())


@pytest.mark.trio
async def test_half_frames_that_trickle_delay_no_client_and_stay_within_the_limit(
    mock_clock: trio.testing.MockClock,
) -> None:
    async with served(buffer_total="4MiB") as modest, trio.open_nursery() as nursery:
        greedy = more(modest, nursery, 34)
        for size in range(0, 500_000, 50_000):
            for bench in greedy:
                if not bench.peer.closed:
                    bench.peer.says(FRAME[size : size + 50_000])
            await settled()
            assert modest.memory.total <= 4 * MIB
            assert await answers_at_once(modest)
        mock_clock.jump(1)
        for bench in greedy:
            if not bench.peer.closed:
                bench.peer.says(b"x")
        await settled()
        assert modest.memory.total <= 4 * MIB
        assert await answers_at_once(modest)
        nursery.cancel_scope.cancel()
    assert modest.memory.total == 0


@pytest.mark.trio
async def test_frames_beyond_the_share_are_received_one_after_the_other(autojump_clock: trio.testing.MockClock) -> None:
    async with served(buffer_total="2MiB") as first, trio.open_nursery() as nursery:
        benches = [first, *more(first, nursery, 7)]
        for start in range(0, len(FRAME), 10_000):
            for bench in benches:
                bench.peer.says(FRAME[start : start + 10_000])
            await trio.sleep(0.001)
        await trio.sleep(1)
        for bench in benches:
            assert bench.peer.answered == [(1, 0)]
        nursery.cancel_scope.cancel()


async def trickle(benches: list[Bench]) -> None:
    """Say 2,000 bytes every 50 ms, for ever."""
    while True:
        for bench in benches:
            if not bench.peer.closed:
                bench.peer.says(bytes(2000))
        await trio.sleep(0.05)


@pytest.mark.trio
async def test_large_frames_that_trickle_delay_no_other_large_frame(autojump_clock: trio.testing.MockClock) -> None:
    async with served(buffer_total="4MiB") as sound, trio.open_nursery() as nursery:
        greedy = more(sound, nursery, 34)
        for bench in greedy:
            bench.peer.says(BEGUN, bytes(103_000))
        nursery.start_soon(trickle, greedy)
        await trio.sleep(0.2)
        assert sound.memory.share == SHARE_MIN
        began_at = trio.current_time()
        for start in range(0, len(FRAME), 60_000):
            sound.peer.says(FRAME[start : start + 60_000])
        while not sound.peer.answered:
            await trio.sleep(0.001)
        assert trio.current_time() - began_at < 0.05
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_turn_ends_when_nothing_more_comes(autojump_clock: trio.testing.MockClock) -> None:
    async with served(buffer_total="16MiB") as sound, trio.open_nursery() as nursery:
        greedy = more(sound, nursery, 20)
        async with sound.memory.permit:
            for bench in greedy:
                bench.peer.says(BEGUN, bytes(700_000))
                await settled()
                bench.peer.says(bytes(60_000))
                bench.peer.says(bytes(60_000))
            for start in range(0, len(FRAME), 150_000):
                sound.peer.says(FRAME[start : start + 150_000])
            await settled()
            assert not sound.peer.answered
            began_at = trio.current_time()
        while not sound.peer.answered:
            await trio.sleep(0.001)
        assert trio.current_time() - began_at < 0.2
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_frames_that_trickle_give_way_to_those_that_come(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(buffer_total="4MiB") as sound, trio.open_nursery() as nursery:
        greedy = more(sound, nursery, 34)
        for bench in greedy:
            bench.peer.says(BEGUN, bytes(110_000))
        nursery.start_soon(trickle, greedy)
        await trio.sleep(2)
        for opaque in range(5):
            sound.peer.says(ask(ECHO, opaque, body=bytes(600_000)))
            await trio.sleep(1)
        assert sound.memory.total <= 2 * MIB
        closed = sum(bench.peer.closed for bench in greedy)
        assert sound.traffic.closed["memory"] == closed
        assert 0 < closed < 34
        assert [opaque for opaque, _ in sound.peer.answered] == list(range(5))
        assert "slower than others that wait" in capsys.readouterr().out
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_slow_sender_of_a_large_frame_is_let_alone_while_there_is_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served(buffer_total="2MiB") as bench:
        for start in range(0, len(FRAME), 10_000):
            bench.peer.says(FRAME[start : start + 10_000])
            await look_after([bench], 1 if start % 20_000 else 0)
        await settled()
        assert bench.peer.answered == [(1, 0)]


@pytest.mark.trio
async def test_the_turn_is_free_again_when_its_connection_ends(autojump_clock: trio.testing.MockClock) -> None:
    async with served(buffer_total="1MiB") as first, trio.open_nursery() as nursery:
        second, third = more(first, nursery, 2)
        for bench in (first, second, third):
            bench.peer.says(FRAME[:150_000])
        await settled()
        first.connection.close("peer")
        second.connection.close("peer")
        third.peer.says(FRAME[150_000:])
        await trio.sleep(1)
        assert third.peer.answered == [(1, 0)]
        nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("whole", [ask(ECHO, 1, body=bytes(500)), BEGUN], ids=["small", "largest"])
async def test_a_sender_of_a_byte_a_second_is_closed(autojump_clock: trio.testing.MockClock, whole: bytes) -> None:
    async with served(slow_sender_timeout="30s", idle_timeout="2m") as bench:
        for second in range(40):
            if not bench.peer.closed:
                bench.peer.says(whole[second : second + 1])
            await look_after([bench], 1)
        assert bench.traffic.closed["slow_sender"] == 1
        assert "slower than 16 KiB a second for 30 s" in str(bench.peer.answers[0][0].remark)


@pytest.mark.trio
async def test_a_fast_beginning_gives_no_time_to_a_stalled_frame(autojump_clock: trio.testing.MockClock) -> None:
    async with served(slow_sender_timeout="30s") as bench:
        bench.peer.says(BEGUN, bytes(2_000_000))
        await look_after([bench], 32)
        assert bench.traffic.closed["slow_sender"] == 1


@pytest.mark.trio
async def test_a_large_frame_has_the_time_that_its_size_takes(autojump_clock: trio.testing.MockClock) -> None:
    async with served(slow_sender_timeout="1s") as bench:
        for start in range(0, len(FRAME), 20_000):
            bench.peer.says(FRAME[start : start + 20_000])
            await look_after([bench], 1)
        assert bench.peer.answered == [(1, 0)]


@pytest.mark.trio
async def test_time_in_which_the_broker_does_not_read_is_not_the_senders(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served(Peer(room=0), slow_sender_timeout="1s", slow_reader_timeout="1h") as bench:
        whole = ask(ECHO, 3)
        bench.peer.says(ask(SLOW, 1), ask(BIG, 2), whole[:10])
        await look_after([bench], 10)
        assert not bench.peer.closed, "a handler runs"
        bench.proceed.set()
        bench.peer.says(whole[10:], *(ask(BIG, n) for n in range(4, 200)), whole[:10])
        await look_after([bench], 10)
        assert not bench.peer.closed, "its answers wait"
        bench.peer.reads()
        await look_after([bench], 3)
        assert bench.traffic.closed["slow_sender"] == 1


@pytest.mark.trio
async def test_at_the_limit_the_connection_that_has_held_most_for_longest_is_closed(
    autojump_clock: trio.testing.MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(buffer_total="1MiB") as old, trio.open_nursery() as nursery:
        young, large, modest = more(old, nursery, 3)
        old.peer.says(FRAME[:400_000])
        await trio.sleep(10)
        young.peer.says(FRAME[:500_000])
        modest.peer.says(FRAME[:1000])
        await settled()
        large.peer.says(FRAME[:300_000])
        await settled()
        assert [bench.peer.closed for bench in (old, young, large, modest)] == [True, False, False, False]
        assert old.traffic.closed["memory"] == 1
        assert "for all connections" in str(old.peer.answers[0][0].remark)
        assert "limits.buffer_total" in capsys.readouterr().out
        assert old.memory.total < MIB
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_client_that_waits_for_the_broker_does_not_count_as_stuck(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with served(buffer_total="1MiB") as stuck, trio.open_nursery() as nursery:
        answered, waiting, large = more(stuck, nursery, 3)
        stuck.peer.says(FRAME[:100_000])
        answered.peer.says(ask(SLOW, 1), FRAME[:250_000])
        await settled()
        async with stuck.memory.permit:
            for size in (250_000, 1):
                waiting.peer.says(FRAME[:size])
                await settled()
            await trio.sleep(20)
            now = trio.current_time()
            assert [bench.connection.stuck_s(now) for bench in (stuck, answered, waiting)] == [20, 0, 0]
            large.peer.says(FRAME[:450_000])
            await settled()
            assert [bench.peer.closed for bench in (stuck, answered, waiting)] == [True, False, False]
        answered.proceed.set()
        await trio.sleep(5)
        assert answered.connection.stuck_s(trio.current_time()) == 5
        assert waiting.connection.stuck_s(trio.current_time()) == 5
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_unread_answers_stay_within_the_limit(mock_clock: trio.testing.MockClock) -> None:
    async with served(buffer_total="1MiB") as modest, trio.open_nursery() as nursery:
        for bench in more(modest, nursery, 50, room=0):
            bench.peer.says(*(ask(BIG, opaque) for opaque in range(20)))
            await settled()
            assert modest.memory.total <= MIB
            assert await answers_at_once(modest)
        assert modest.traffic.closed["memory"] > 0
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_waiting_answers_are_bounded_for_one_connection(mock_clock: trio.testing.MockClock) -> None:
    async with served(Peer(room=0), connection_buffer="64KiB", frame_size="1MiB") as bench:
        bench.peer.says(*(ask(LATER, opaque) for opaque in range(40)))
        await settled()
        for request in bench.held:
            request.reply(Response(0, body=bytes(100_000)))
            assert bench.memory.total < 1.3 * MIB
        assert bench.traffic.closed["memory"] == 1
        assert bench.memory.total == 0


@pytest.mark.trio
async def test_a_reader_below_the_least_rate_is_closed(autojump_clock: trio.testing.MockClock) -> None:
    async with served(Peer(room=0), slow_reader_timeout="30s") as slow, trio.open_nursery() as nursery:
        (steady,) = more(slow, nursery, 1, room=0)
        for bench in (slow, steady):
            bench.peer.says(*(ask(BIG, opaque) for opaque in range(20)))
        for _ in range(60):
            slow.peer.reads(1)
            steady.peer.reads(20_000)
            await look_after([slow, steady], 1)
        assert slow.traffic.closed["slow_reader"] == 1
        assert not steady.peer.closed
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_request_being_handled_counts_with_the_read_that_it_came_in() -> None:
    async with served() as bench:
        bench.peer.says(ask(SLOW, 1), FRAME)
        await settled()
        assert bench.memory.total > len(FRAME)
        bench.proceed.set()
        await settled()
        assert bench.memory.total == 0


@pytest.mark.trio
async def test_a_waiting_request_does_not_keep_its_read() -> None:
    async with served() as bench:
        bench.peer.says(ask(LATER, 1), FRAME)
        await settled()
        assert bench.held[0].body.obj == b""
        bench.held[0].reply(Response())


@pytest.mark.trio
async def test_a_read_that_was_answered_is_not_kept_until_the_next() -> None:
    async with served() as bench:
        for data in (FRAME, FRAME + FRAME[:100]):
            held = sys.getrefcount(data)
            bench.peer._to_broker.send_nowait(data)
            await settled()
            assert bench.peer.answered[-1] == (1, 0)
            assert sys.getrefcount(data) == held


@pytest.mark.trio
async def test_a_connection_that_has_ended_keeps_no_bytes() -> None:
    async with served() as bench:
        bench.peer.says(FRAME[:300_000])
        await settled()
        assert bench.connection._reader.allocated_bytes > 300_000
        bench.connection.close("peer")
        assert bench.connection._reader.allocated_bytes == 0


PULL = PullMessageHeader("g", "t", 0, 0, 1000, 4, 0, 0, "*", 0, "TAG")
FETCH = FetchRecordsHeader("t", 0, 0, 1000, 1 << 22)
RANGES = {
    RequestCode.PULL_MESSAGE: PULL.to_ext(HeaderType.MSGPACK),
    RequestCode.FETCH_RECORDS: FETCH.to_ext(HeaderType.MSGPACK),
}
asked = pytest.mark.parametrize("code", RANGES)


@asked
def test_a_range_is_answered_with_no_more_than_a_share(tmp_path: Path, code: RequestCode) -> None:
    async def scene() -> None:
        async with broker_bench(tmp_path) as bench:
            await bench.create_topic("t")
            client = bench.client(HeaderType.MSGPACK)
            for _ in range(20):
                await client.send("t", bytes(10_000))
            await bench.settled()
            sizes = []
            for share in (1 << 20, 64 * 1024, 1):
                client.share = share
                response = await client.ask(code, RANGES[code])
                assert response is not None
                sizes.append(len(response.body) // 10_000)
            assert sizes == [20, 6, 1]

    run_by_the_clock(scene)


@asked
def test_old_messages_are_not_read_for_a_client_that_has_not_taken_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    monkeypatch.setattr(MessageReader, "_is_cold", lambda *_: True)

    async def scene() -> None:
        async with broker_bench(tmp_path) as bench:
            await bench.create_topic("t")
            client = bench.client(HeaderType.MSGPACK)
            for _ in range(2):
                await client.send("t", bytes(200_000))
            await bench.settled()
            client.is_crowded = True
            assert await client.ask(code, RANGES[code]) is None
            client.is_crowded = False
            client.has_drained.set()
            response = await client.ask(code, RANGES[code])
            assert response is not None
            assert response.code == 0

    run_by_the_clock(scene)
