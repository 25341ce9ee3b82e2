"""Messages that are sent alone and repeated are stored once, and so delivered once, at any time of the repetition."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reput_broker.put.appender import StoredBefore
from reput_broker.remoting.request import Refusal
from reput_broker.send.deduplication import Deduplication, StoredAt, _are_consecutive, content_of
from reput_broker.store.base.results import PutResult
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record
from support.delayed import DelayBench, bench_options
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

LEVEL = {"DELAY": "3"}
TIME = {"TIMER_DELAY_MS": "10000"}


class Sender:
    """Sends single messages as the broker stores them; `go_on` with another bench."""

    def __init__(self, bench: DelayBench, window_s: float = 600.0) -> None:
        self.bench = bench
        self.window_s = window_s
        self.deduplication = Deduplication(bench.store, clock_ms=bench.clock_ms, window_s=lambda: self.window_s)

    def complete_index(self) -> None:
        self.bench.wrote()
        self.bench.store.complete_index()

    def send(
        self,
        delay: dict[str, str],
        *,
        unique_id: str = "a",
        topic: str = "orders",
        queue_id: int = 1,
        body: bytes = b"x",
        check: bool = True,
    ) -> PutResult:
        found = {"UNIQ_KEY": unique_id, "TAGS": "paid", "CLUSTER": "c", **delay}
        record = Record(topic, body, queue_id=queue_id, properties=encode_properties(found))
        record = self.bench.parts.delay_redirects.redirect(record, found) or record
        content = content_of(record.body, record.properties)
        known = None
        if check:
            self.complete_index()
            known = self.deduplication.find_single(topic, unique_id)
        before = self.deduplication.single_stored_before(topic, unique_id, content, known)
        if before is not None:
            return before
        result = self.bench.store.put_record(record)
        self.deduplication.remember_single(topic, queue_id, unique_id, content, result, checked=check)
        self.bench.wrote()
        return result

    def block(self, *unique_ids: str, topic: str = "orders") -> StoredBefore | None:
        """Ask for the outcome of a block of such messages without a delay, as the broker does before it stores it."""
        self.complete_index()
        known = self.deduplication.find_all(topic, unique_ids)
        return self.deduplication.stored_before(topic, unique_ids, [100] * len(unique_ids), known)

    def repeat(self, first: PutResult, delay: dict[str, str], queue_id: int = 1) -> None:
        """Send it again, to another queue: it has the outcome of the first time."""
        again = self.send(delay, queue_id=3)
        assert isinstance(again, StoredBefore)
        assert again.queue_id == queue_id
        assert (again.queue_offset, again.physical_offset, again.end_offset, again.store_timestamp_ms) == (
            first.queue_offset,
            first.physical_offset,
            first.end_offset,
            first.store_timestamp_ms,
        )


def new_bench(tmp_path: Path, **delay: object) -> DelayBench:
    return DelayBench(bench_options(tmp_path / "store"), **delay)  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [LEVEL, TIME], ids=["level", "time"])
@pytest.mark.parametrize("dispatched", [False, True])
async def test_a_repetition_has_the_outcome_of_the_first_time(
    tmp_path: Path, delay: dict[str, str], dispatched: bool
) -> None:
    bench = new_bench(tmp_path)
    sender = Sender(bench)
    async with bench.running():
        bench.holds_writes = not dispatched
        first = sender.send(delay, check=False)
        await trio.sleep(0.3)
        sender.repeat(first, delay)
        bench.holds_writes = False
        bench.wrote()
        await trio.sleep(5)
        sender.repeat(first, delay)
        await trio.sleep(15)
        assert len(bench.delivered()[b"x"]) == 1
        sender.repeat(first, delay)  # it has been delivered
        await trio.sleep(15)
    assert len(bench.delivered()[b"x"]) == 1
    bench.stop()


@pytest.mark.parametrize("delay", [LEVEL, TIME], ids=["level", "time"])
async def test_a_killed_broker_knows_what_it_stored(tmp_path: Path, delay: dict[str, str]) -> None:
    bench = new_bench(tmp_path)
    first = Sender(bench).send(delay, check=False)
    for pause_s in (3, 12):  # before it is due, and after
        bench = bench.kill()
        async with bench.running():
            Sender(bench).repeat(first, delay)
            await trio.sleep(pause_s)
    assert len(bench.delivered()[b"x"]) == 1
    bench.stop()


@pytest.mark.parametrize("delay", [LEVEL, TIME], ids=["level", "time"])
async def test_a_new_master_knows_what_it_does_not_know_to_be_confirmed(tmp_path: Path, delay: dict[str, str]) -> None:
    bench = new_bench(tmp_path)
    first = Sender(bench).send(delay, check=False)
    bench = bench.kill()
    bench.store.confirm_offset = first.physical_offset
    async with bench.running():
        Sender(bench).repeat(first, delay)
        await trio.sleep(15)
        Sender(bench).repeat(first, delay)
        bench.store.confirm_offset = None
        bench.wrote()
        assert len(bench.delivered()[b"x"]) == 1
    bench.stop()


async def test_a_time_that_has_passed_meanwhile_makes_no_other_message(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    sender = Sender(bench)
    at = {"TIMER_DELIVER_MS": str(bench.clock_ms() + 1500)}
    async with bench.running():
        first = sender.send(at, check=False)
        await trio.sleep(5)
        sender.repeat(first, at)
        past = {"TIMER_DELIVER_MS": str(bench.clock_ms() - 1500)}
        other = sender.send(past, unique_id="b", body=b"past")
        again = sender.send(past, unique_id="b", body=b"past")
        assert again.physical_offset == other.physical_offset
    assert {body: len(times) for body, times in bench.delivered().items()} == {b"x": 1, b"past": 1}
    bench.stop()


@pytest.mark.parametrize("remembered", [True, False])
async def test_another_content_or_delay_is_refused(tmp_path: Path, remembered: bool) -> None:
    bench = new_bench(tmp_path)
    sender = Sender(bench)
    sender.send(TIME)
    if not remembered:
        sender = Sender(bench)
    for delay, body in ((TIME, b"y"), ({"TIMER_DELAY_MS": "10001"}, b"x"), (LEVEL, b"x"), ({}, b"x")):
        with pytest.raises(Refusal, match="another message with the unique id 'a' is stored for queue 1"):
            sender.send(delay, body=body)
    bench.stop()


@pytest.mark.parametrize("delay", [LEVEL, TIME], ids=["level", "time"])
@pytest.mark.parametrize("remembered", [False, True])
async def test_a_block_under_the_id_of_a_message_that_waits_is_refused(
    tmp_path: Path, delay: dict[str, str], remembered: bool
) -> None:
    """Sent in a block it asks for no delay: it is another message, while the first waits and when it was delivered."""
    bench = new_bench(tmp_path)
    sender = Sender(bench)
    async with bench.running():
        sender.send(delay, check=False)
        if not remembered:
            await trio.sleep(5)
            sender = Sender(bench)
        with pytest.raises(Refusal, match="another message with the unique id 'a' is stored for queue 1"):
            sender.block("a")
        with pytest.raises(Refusal, match="1 of 2 messages are stored already, for instance 'a'"):
            sender.block("b", "a")
        assert sender.block("b") is None
        assert sender.block("a", topic="others") is None
        await trio.sleep(20)
        assert len(bench.delivered()[b"x"]) == 1
        with pytest.raises(Refusal, match="another message with the unique id 'a' is stored"):
            sender.block("a")
    bench.stop()


async def test_one_id_in_two_topics_is_of_two_messages(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    sender = Sender(bench)
    async with bench.running():
        first = sender.send(TIME)
        other = Sender(bench).send(TIME, topic="others")
        assert not isinstance(other, StoredBefore)
        sender.repeat(first, TIME)
        await trio.sleep(15)
    assert [*bench.delivered("orders")] == [*bench.delivered("others")] == [b"x"]
    bench.stop()


@pytest.mark.parametrize("delay", [LEVEL, TIME], ids=["level", "time"])
async def test_a_cancelled_message_stays_cancelled(tmp_path: Path, delay: dict[str, str]) -> None:
    bench = new_bench(tmp_path)
    first = Sender(bench).send(delay)
    async with bench.running():
        await trio.sleep(5)
        assert await bench.cancel("a") == ["CANCELLED"]
        Sender(bench).repeat(first, delay)
        await trio.sleep(10)
        assert bench.delivered() == {}
        # Beyond the window it is another message, although the record that cancelled the first one is within.
        again = Sender(bench, window_s=12.0).send(delay)
        assert not isinstance(again, StoredBefore)
        await trio.sleep(15)
    assert len(bench.delivered()[b"x"]) == 1
    bench.stop()


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_topic_that_was_deleted_is_forgotten(tmp_path: Path, remembered: bool) -> None:
    bench = new_bench(tmp_path)
    sender = Sender(bench)
    sender.send(TIME)
    bench.store.delete_topic("orders")
    if not remembered:
        sender = Sender(bench)
    assert not isinstance(sender.send(TIME), StoredBefore)
    bench.stop()


async def test_a_first_attempt_that_comes_after_its_repetition_is_known(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    sender = Sender(bench)
    repeated = sender.send(TIME)
    sender.send(TIME, unique_id="b")  # lets go of what is dispatched
    late = sender.send(TIME, check=False)
    assert late.physical_offset == repeated.physical_offset
    bench.stop()


async def test_the_window_ends(tmp_path: Path) -> None:
    bench = new_bench(tmp_path)
    sender = Sender(bench)
    at = {"TIMER_DELAY_MS": "3600000"}
    first = sender.send(at)
    await trio.sleep(600)
    sender.repeat(first, at)
    await trio.sleep(0.001)
    assert not isinstance(sender.send(at), StoredBefore)
    bench.stop()


async def test_a_delayed_message_is_not_a_record_of_a_block() -> None:
    stored = StoredAt(0, 5, 1000, 1200, 1)
    assert _are_consecutive([stored], [200])
    assert not _are_consecutive([stored], [201])
    waiting = stored._replace(content=content_of(b"x", encode_properties({"UNIQ_KEY": "a", **LEVEL})))
    assert not _are_consecutive([waiting], [200])
