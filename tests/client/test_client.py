"""The client against a real broker: the same scenarios under trio, asyncio and the blocking API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_client import Message, Producer, PullStatus, ReceivedMessage, StopRunning
from reput_client.errors import ClientClosed, ConnectFailed, NoQueue, RequestTimeout
from reput_protocol.errors import BrokerError, FrameTooLarge, InvalidMessage, NotFound, TopicNotFound
from support.faces import FACES, PROACTOR, Face, scenario


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real broker in its own thread."""
    ready = threading.Event()
    found: list[str] = []
    stop: list[trio.lowlevel.TrioToken] = []
    stopping = trio.Event()

    async def serve(data_dir: Path) -> None:
        small = {"commit_log_file_size": 16 << 20, "index_slots": 5_000, "index_entries": 20_000}
        config = BrokerConfig.model_validate({"data_dir": data_dir, "port": 0, "http_port": None, "store": small})
        async with Broker(config) as broker:
            found.append(broker.address)
            stop.append(trio.lowlevel.current_trio_token())
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=trio.run, args=(serve, tmp_path_factory.mktemp("broker")))
    thread.start()
    assert ready.wait(10), "the broker did not start"
    yield found[0]
    stop[0].run_sync_soon(stopping.set)
    thread.join(20)


@pytest.fixture(params=(*FACES, PROACTOR))
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)


@scenario
async def test_a_message_comes_back_as_it_was_sent(face: Face, address: str, topic: str) -> None:

    message = Message(topic, b"body", tag="paid", keys=["o-42", "c-7"], properties={"k": "v", "é": "ü"}, flag=-5)
    async with face.Producer(address, group="shop") as producer:
        receipt = await producer.send(message, ack="flushed")
    assert receipt.topic == topic
    assert receipt.ack == "flushed"
    assert receipt.message_id == receipt.unique_id != receipt.offset_message_id
    async with face.PullConsumer(address, group="g") as consumer:
        result = await consumer.pull(topic, receipt.queue_id, receipt.queue_offset, wait_s=0.0)
    assert result.status is PullStatus.FOUND
    (received,) = result.messages
    assert (received.topic, received.queue_id, received.queue_offset) == (topic, receipt.queue_id, receipt.queue_offset)
    assert received.body == b"body"
    assert received.tag == "paid"
    assert received.keys == ("o-42", "c-7")
    assert received.properties["k"] == "v"
    assert received.get_property("é") == "ü"
    assert received.get_property("none") is None
    assert received.flag == -5
    assert received.message_id == receipt.message_id
    assert received.offset_message_id == receipt.offset_message_id
    assert received.store_timestamp_ms == receipt.store_timestamp_ms
    assert abs(received.born_timestamp_ms - received.store_timestamp_ms) < 5000
    assert received.store_host == receipt.store_host
    assert received.born_host.startswith("127.0.0.1:")
    async with face.Admin(address) as admin:
        assert (await admin.view_message(receipt.offset_message_id)).record == received.record


@scenario
async def test_a_batch_keeps_its_order_over_many_blocks(face: Face, address: str, topic: str) -> None:

    bodies = [b"%05d" % number * (number % 90) for number in range(500)]
    async with face.Producer(address, ack="page_cache", batch_bytes=20_000) as producer:
        receipts = await producer.send_batch([Message(topic, body) for body in bodies], queue_id=2)
        assert await producer.send_batch([]) == []
    assert [receipt.queue_offset for receipt in receipts] == list(range(500))
    async with face.PullConsumer(address, group="g") as consumer:
        received: list[ReceivedMessage] = []
        while len(received) < 500:
            result = await consumer.pull(topic, 2, len(received), max_messages=70, wait_s=1.0)
            received += result.messages
    assert [message.body for message in received] == bodies
    assert [message.physical_offset for message in received] == [r.physical_offset for r in receipts]
    assert [message.message_id for message in received] == [r.message_id for r in receipts]


@scenario
async def test_posts_keep_their_order_in_a_queue(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address, ack="page_cache", batch_bytes=2000) as producer:
        messages = [Message(topic, b"%d" % number) for number in range(300)]
        receipts = await face.post_all(producer, messages, queue_id=1)
        spread = await face.post_all(producer, [Message(topic, b"x")] * 128)
    assert [receipt.queue_offset for receipt in receipts] == list(range(300))
    assert {receipt.queue_id for receipt in spread} == {0, 1, 2, 3}


@scenario
async def test_delayed_messages_wait_elsewhere(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer:
        for message in (
            Message(topic, b"x", delay_level=3),
            Message(topic, b"x", delay_s=60.0),
            Message(topic, b"x", deliver_at=datetime.now(UTC) + timedelta(minutes=1)),
        ):
            receipt = await producer.send(message, queue_id=0)
            assert (receipt.topic, receipt.queue_id, receipt.ack) == (topic, 0, "flushed")
        assert (await producer.send(Message(topic, b"now"), queue_id=0)).queue_offset == 0


@scenario
async def test_many_senders_share_one_connection(face: Face, address: str, topic: str) -> None:

    receipts = []
    async with face.Producer(address) as producer:

        async def send() -> None:
            receipts.extend([await producer.send(Message(topic, b"x"), queue_id=0) for _ in range(5)])

        await face.together(*[send] * 20)
    assert sorted(receipt.queue_offset for receipt in receipts) == list(range(100))


@scenario
async def test_lingering_sends_share_blocks_and_get_receipts_of_their_own(face: Face, address: str, topic: str) -> None:

    receipts = {}
    bodies: dict[int, bytes] = {}
    async with face.Producer(address, linger_s=0.3, ack="page_cache") as producer:

        def sender(number: int):  # type: ignore[no-untyped-def]
            async def send() -> None:
                receipts[number] = await producer.send(Message(topic, b"%d" % number), queue_id=0)

            return send

        await face.together(*[sender(number) for number in range(30)])
        async with face.PullConsumer(address, group="g") as consumer:
            await face.until(lambda: len(receipts) == 30)
            # At `page_cache` the answer comes before the message is readable, so one pull may not have all.
            while len(bodies) < 30:
                result = await consumer.pull(topic, 0, len(bodies), wait_s=5.0)
                assert result.messages
                bodies |= {message.queue_offset: bytes(message.body) for message in result.messages}
    assert {receipts[number].queue_offset for number in range(30)} == set(range(30))
    assert all(bodies[receipts[number].queue_offset] == b"%d" % number for number in range(30))
    # Records of one block have one store timestamp.
    assert len({receipt.store_timestamp_ms for receipt in receipts.values()}) < 10


@scenario
async def test_large_messages_cross_in_pieces_while_small_ones_pass(face: Face, address: str, topic: str) -> None:

    bodies = [bytes([number]) * (2_500_000 + number) for number in range(3)]
    async with face.Producer(address, batch_bytes=6_000_000) as producer:
        await producer.send(Message(topic, b"first"), queue_id=0)

        async def large() -> None:
            await producer.send_batch([Message(topic, body) for body in bodies], queue_id=1)

        async def small() -> None:
            for _ in range(10):
                await producer.send(Message(topic, b"small"), queue_id=0)

        await face.together(large, small)
    async with face.PullConsumer(address, group="g") as consumer:
        received: list[bytes] = []
        while len(received) < 3:
            result = await consumer.pull(topic, 1, len(received), wait_s=1.0)
            received += [message.body for message in result.messages]
        assert received == bodies
        assert await consumer.max_offset(topic, 0) == 11


@scenario
async def test_keys_choose_queues_and_wrong_queues_are_refused(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer:
        chosen = {(await producer.send(Message(topic, b"x"), ordering_key="same")).queue_id for _ in range(5)}
        assert len(chosen) == 1
        with pytest.raises(InvalidMessage, match="no writable queue 9"):
            await producer.send(Message(topic, b"x"), queue_id=9)
        with pytest.raises(InvalidMessage, match="ordering_key must be str, not int"):
            await producer.send(Message(topic, b"x"), ordering_key=7)
        with pytest.raises(InvalidMessage, match="one topic"):
            await producer.send_batch([Message(topic, b"x"), Message("other", b"x")])


@scenario
async def test_a_consumer_reads_all_queues_and_goes_on_where_it_stopped(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer:
        for number in range(40):
            await producer.send(Message(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd"))
    first = []
    async with face.Consumer(address, group="readers", topic=topic, tags="even || odd") as consumer:
        async for message in consumer:
            first.append(message.body)
            if len(first) == 25:
                break
    second = []
    async with face.Consumer(address, group="readers", topic=topic) as consumer:
        while (message := await consumer.receive(timeout_s=0.3)) is not None:
            second.append(message.body)
    assert sorted(map(int, first + second)) == list(range(40))
    even = []
    async with face.Consumer(address, group="other", topic=topic, tags="even") as consumer:
        while (message := await consumer.receive(timeout_s=0.3)) is not None:
            even.append(int(message.body))
    assert sorted(even) == list(range(0, 40, 2))
    async with face.PullConsumer(address, group="other") as consumer:
        for queue_id in range(4):
            end = await consumer.max_offset(topic, queue_id)
            assert await consumer.committed(topic, queue_id) == end, "filtered messages count as handled"


@scenario
async def test_a_message_in_hand_when_the_body_fails_comes_again(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number), queue_id=0)

    async def fail_at_the_second() -> None:
        async with face.Consumer(address, group="g", topic=topic) as consumer:
            async for message in consumer:
                if message.body == b"1":
                    raise KeyError

    with pytest.raises(KeyError):
        await fail_at_the_second()
    async with face.Consumer(address, group="g", topic=topic) as consumer:
        assert (await consumer.receive()).body == b"1"


@scenario
async def test_starting_points(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer:
        for number in range(3):
            await producer.send(Message(topic, b"%d" % number), queue_id=0)
        later = datetime.now(UTC) + timedelta(hours=1)
        for start, expected in (("earliest", b"0"), (2, b"2"), ("latest", b"new"), (later, b"new")):
            group = f"g{expected.decode()}{type(start).__name__}"
            async with face.Consumer(address, group=group, topic=topic, start=start) as consumer:
                if expected == b"new":
                    assert await consumer.receive(timeout_s=0.05) is None
                    await producer.send(Message(topic, b"new"), queue_id=0)
                assert (await consumer.receive(timeout_s=5.0)).body == expected


@scenario
async def test_a_handler_runs_with_its_concurrency_and_commits_a_contiguous_prefix(
    face: Face, address: str, topic: str
) -> None:

    async with face.Producer(address) as producer:
        await producer.send_batch([Message(topic, b"%d" % number) for number in range(50)], queue_id=0)
    seen: list[int] = []
    async with face.Consumer(address, group="g", topic=topic, on_failure=StopRunning()) as consumer:

        async def handle(message) -> None:  # type: ignore[no-untyped-def]
            number = int(message.body)
            if number == 30:
                raise KeyError(number)
            seen.append(number)

        with pytest.raises((KeyError, ExceptionGroup)):
            await consumer.run(handle, concurrency=4)
        await consumer.commit()
    async with face.PullConsumer(address, group="g") as pull_consumer:
        assert await pull_consumer.committed(topic, 0) == 30
    assert set(range(30)) <= set(seen)

    handled: list[int] = []
    async with face.Consumer(address, group="g", topic=topic) as consumer:

        async def collect(message) -> None:  # type: ignore[no-untyped-def]
            handled.append(int(message.body))

        async def stop() -> None:
            await face.until(lambda: len(handled) >= 20)
            await consumer.aclose()

        async def run() -> None:
            await consumer.run(collect)

        await face.together(run, stop)
    assert handled == list(range(30, 50))


@scenario
async def test_clients_close_in_any_order_and_from_another_task(face: Face, address: str, topic: str) -> None:

    waited = []

    def consumer_is_waiting(address: str, topic: str) -> bool:
        waited.append(1)
        return len(waited) % 20 == 0

    first = face.Producer(address)
    second = face.Producer(address)
    await first.__aenter__()
    await second.__aenter__()
    await first.send(Message(topic, b"1"))
    await second.send(Message(topic, b"2"))
    await first.__aexit__(None, None, None)
    await second.send(Message(topic, b"3"))
    with pytest.raises(ClientClosed):
        await first.send(Message(topic, b"4"))
    await second.aclose()
    await second.aclose()

    consumer = face.Consumer(address, group="g", topic=topic, start="latest")
    await consumer.__aenter__()
    got = []

    async def iterate() -> None:
        got.extend([message async for message in consumer])

    async def close() -> None:
        await face.until(lambda: consumer_is_waiting(address, topic))
        await consumer.aclose()

    await face.together(iterate, close)
    assert got == []


@scenario
async def test_a_long_poll_is_woken_by_a_message_and_ends_at_its_deadline(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer, face.PullConsumer(address, group="g") as consumer:
        await producer.send(Message(topic, b"1"), queue_id=0)
        results = []

        async def wait() -> None:
            results.append(await consumer.pull(topic, 0, 1, wait_s=20.0))

        async def send() -> None:
            # On the same connection as the waiting pull.
            assert await consumer.max_offset(topic, 0) == 1
            await producer.send(Message(topic, b"2"), queue_id=0)

        await face.together(wait, send)
        assert [message.body for message in results[0].messages] == [b"2"]
        empty = await consumer.pull(topic, 0, 2, wait_s=0.05)
        assert empty.status is PullStatus.NO_NEW_MESSAGE
        assert empty.next_begin_offset == 2
        beyond = await consumer.pull(topic, 0, 99, wait_s=0.0)
        assert beyond.status is PullStatus.OFFSET_ILLEGAL
        assert beyond.next_begin_offset == 2


@scenario
async def test_reading_ahead_gives_what_single_pulls_give(face: Face, address: str, topic: str) -> None:

    bodies = [b"%03d" % number for number in range(250)]
    async with face.Producer(address) as producer, face.PullConsumer(address, group="g") as consumer:
        await producer.send_batch([Message(topic, body) for body in bodies], queue_id=0)
        received: list[bytes] = []
        offset = 0
        while offset < len(bodies):
            result = await consumer.pull(topic, 0, offset, max_messages=100, read_ahead=True)
            received += [message.body for message in result.messages]
            offset = result.next_begin_offset
        assert received == bodies

        # A different pull does not get the one read ahead.
        await consumer.pull(topic, 0, 0, max_messages=10, read_ahead=True)
        result = await consumer.pull(topic, 0, 100, max_messages=10)
        assert result.messages[0].queue_offset == 100
        await consumer.pull(topic, 0, 0, max_messages=10, read_ahead=True)
        result = await consumer.pull(topic, 0, 10, max_messages=20)
        assert len(result.messages) == 20
        await consumer.pull(topic, 0, 0, max_messages=10, read_ahead=True)

        # At the end nothing is read ahead, and the next pull waits for a message.
        await consumer.pull(topic, 0, 240, read_ahead=True)

        async def send() -> None:
            await producer.send(Message(topic, b"late"), queue_id=0)

        async def wait() -> None:
            result = await consumer.pull(topic, 0, 250, wait_s=10.0, read_ahead=True)
            assert [message.body for message in result.messages] == [b"late"]

        await face.together(wait, send)


@scenario
async def test_offsets_are_committed_and_rewound(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer:
        await producer.send(Message(topic, b"1"), queue_id=0)
    async with face.PullConsumer(address, group="g") as consumer:
        assert await consumer.committed(topic, 0) is None
        await consumer.commit(topic, 0, 7)
        assert await consumer.committed(topic, 0) == 7
        await consumer.commit(topic, 0, 3)
        assert await consumer.committed(topic, 0) == 3
        assert await consumer.min_offset(topic, 0) == 0
        assert await consumer.offset_by_time(topic, 0, 0) == 0
        assert [queue.queue_id for queue in await consumer.queues(topic)] == [0, 1, 2, 3]


@scenario
async def test_messages_are_found_by_key_and_by_id(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer, face.Admin(address) as admin:
        receipts = [
            await producer.send(Message(topic, b"%d" % n, keys=["all", f"k{n}", "Aa" if n else "BB"])) for n in range(5)
        ]
        found = await admin.find_messages(topic, "all")
        assert found.complete
        assert [message.body for message in found.messages] == [b"4", b"3", b"2", b"1", b"0"]
        found = await admin.find_messages(topic, "all", max_messages=2)
        assert [message.body for message in found.messages] == [b"4", b"3"]
        for number, receipt in enumerate(receipts):
            for key in (receipt.message_id, f"k{number}"):
                (message,) = (await admin.find_messages(topic, key)).messages
                assert message.offset_message_id == receipt.offset_message_id
                assert message.body == b"%d" % number
        assert len((await admin.find_messages(topic, "Aa")).messages) == 4
        assert len((await admin.find_messages(topic, "BB")).messages) == 1
        assert not (await admin.find_messages(topic, "nothing")).messages
        first, last = receipts[0].store_timestamp_ms, receipts[-1].store_timestamp_ms
        assert len((await admin.find_messages(topic, "all", begin=first, end=last)).messages) == 5
        assert len((await admin.find_messages(topic, begin=first, end=last)).messages) == 5
        assert not (await admin.find_messages(topic, end=first - 1)).messages
        assert not (await admin.find_messages(topic, "all", end=first - 1)).messages
        assert not (await admin.find_messages(topic, "all", begin=last + 1)).messages


@scenario
async def test_topics_are_managed(face: Face, address: str, topic: str) -> None:

    async with face.Admin(address) as admin:
        await admin.create_topic(topic, queues=3)
        assert topic in await admin.list_topics()
        assert (await admin.topic_config(topic)).write_queue_nums == 3
        await admin.ensure_topic(topic, queues=5)
        assert (await admin.topic_config(topic)).write_queue_nums == 3
        await admin.alter_topic(topic, read_queues=3, write_queues=1)
        route = await admin.route(topic)
        assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].write_queue_nums) == (3, 1)
        assert len((await admin.topic_stats(topic)).offset_table) == 3
        assert "brokerVersionDesc" in await admin.broker_status()
        assert (await admin.cluster_info()).broker_addr_table
        assert await admin.earliest_message_time_ms(topic, 0) is None
        await admin.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            await admin.topic_config(topic)
        await admin.ensure_topic(topic, queues=5)
        assert (await admin.topic_config(topic)).write_queue_nums == 5
        with pytest.raises(InvalidMessage):
            await admin.view_message("xyz")
        with pytest.raises(NotFound):
            await admin.view_message("7F00000100002A9F00000000FFFFFFFF")


@scenario
async def test_a_topic_that_is_not_there(face: Face, address: str, topic: str) -> None:

    with pytest.raises(TopicNotFound):
        async with face.Consumer(address, group="g", topic=topic, wait_for_topic=False):
            pass
    async with face.PullConsumer(address, group="g") as consumer:
        with pytest.raises(TopicNotFound):
            await consumer.pull(topic, 0, 0)
    async with face.Admin(address) as admin:
        await admin.create_topic(topic, queues=1, perm=2)
    with pytest.raises(NoQueue):
        async with face.Consumer(address, group="g", topic=topic):
            pass


@scenario
async def test_a_request_that_no_server_accepts_fails_alone(face: Face, address: str, topic: str) -> None:
    """A server closes the connection that it comes on, and the client would send it again until its deadline."""
    async with face.Producer(address) as producer, face.PullConsumer(address, group="g") as consumer:
        await producer.send(Message(topic, b"x"), queue_id=0)
        with pytest.raises(FrameTooLarge, match="header of 1500"):
            await consumer.pull(topic, 0, 0, tags=1_500_000 * "x")
        assert [message.body for message in (await consumer.pull(topic, 0, 0)).messages] == [b"x"]


@scenario
async def test_a_wrong_address_fails_at_once(face: Face) -> None:

    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:1:"):
        async with face.Producer("127.0.0.1:1"):
            pass
    with pytest.raises((ConnectFailed, RequestTimeout)):
        await face.Admin("127.0.0.1:1", timeout_s=0.05).list_topics()


@scenario
async def test_a_oneway_send_is_stored_and_unanswered(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer:
        for number in range(20):
            await producer.send_oneway(Message(topic, b"%d" % number), queue_id=2)
        receipt = await producer.send(Message(topic, b"last"), queue_id=2)
    assert receipt.queue_offset == 20, "in the order in which they were sent"
    async with face.PullConsumer(address, group="g") as consumer:
        result = await consumer.pull(topic, 2, 0, wait_s=0.0)
    assert [message.body for message in result.messages][:20] == [b"%d" % number for number in range(20)]


@scenario
async def test_a_oneway_send_tells_what_is_known_before_it_leaves(face: Face, address: str, topic: str) -> None:

    async with face.Producer(address) as producer:
        with pytest.raises(InvalidMessage, match="no writable queue 77"):
            await producer.send_oneway(Message(topic, b"x"), queue_id=77)
        with pytest.raises(InvalidMessage):
            await producer.send_oneway(Message(topic, b"x" * (9 << 20)))


@scenario
async def test_a_producer_that_deduplicates_has_the_first_receipt_again(face: Face, address: str, topic: str) -> None:

    with pytest.raises(ValueError, match="unique_ids"):
        face.Producer(address, deduplicate=True, unique_ids=False)
    async with face.Producer(address, deduplicate=True) as producer:
        messages = (
            Message(topic, b"x", unique_id="a"),
            Message(topic, b"x", unique_id="b", delay_level=18),
            Message(topic, b"x", unique_id="c", delay_s=3600.0),
        )
        for message in messages:
            first = await producer.send(message, queue_id=0)
            assert await producer.send(message, queue_id=0) == first
            assert await face.post_all(producer, [message], queue_id=0) == [first]
            assert await producer.send_batch([message], queue_id=0) == [first]
        with pytest.raises(BrokerError, match="another message with the unique id 'b'"):
            await producer.send(Message(topic, b"x", unique_id="b", delay_level=17))


def test_a_client_may_be_used_in_one_asyncio_loop_after_the_other(address: str) -> None:
    producer = Producer(address)

    async def send(body: bytes) -> int:
        receipt = await producer.send(Message("loops", body), queue_id=0)
        return receipt.queue_offset

    async def close() -> None:
        await producer.aclose()

    assert [asyncio.run(send(body)) for body in (b"one", b"two", b"three")] == [0, 1, 2]
    asyncio.run(close())
