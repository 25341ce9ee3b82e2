"""The broker's answers to sinks: staging, committing, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message
from reput_protocol.codes import RequestCode
from reput_protocol.commands.stage import CommitStagedBody, encode_staged_head
from reput_protocol.names import SINK_TOPIC
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.header import Header
from support.sink_client import SinkClient, Staged, block_of, published

TOPIC = "orders"


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    found = new_reput_broker(sink={"staging_size_max": 1 << 20})
    with Admin(found.address) as admin:
        admin.create_topic(TOPIC, queues=2)
    return found


@pytest.fixture
def client(broker: BackgroundBroker) -> Iterator[SinkClient]:
    with SinkClient(broker.address) as client:
        yield client


def why(header: Header) -> str:
    assert header.code != 0, "it was not refused"
    return str(header.remark)


def staged_batch(client: SinkClient, batch_id: int, bodies: list[bytes], query_id: str = "q") -> Staged:
    staged = Staged(query_id, batch_id)
    assert client.stage(staged, TOPIC, 0, bodies).code == 0
    assert client.end(staged).code == 0
    return staged


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(broker: BackgroundBroker, client: SinkClient) -> None:
    first, second, loser = (Staged("q", 0, part) for part in (0, 1, 1))
    for staged in (first, second, loser):
        for queue_id in (0, 1):
            assert client.stage(staged, TOPIC, queue_id, [b"%d" % number for number in range(50)]).code == 0
        assert client.end(staged).code == 0
    assert published(broker.address, TOPIC) == {0: [], 1: []}
    header = client.commit("q", 0, [first, second])
    assert (header.code, dict(header.ext)) == (0, {"lastBatchId": 0, "messages": 200, "repeated": False})
    bodies = [b"%d" % number for number in range(50)] * 2
    assert published(broker.address, TOPIC) == {0: bodies, 1: bodies}
    assert dict(client.known("q").ext) == {
        "stagings": 0,
        "stagedBytes": 0,
        "lastBatchId": 0,
        "newTopicQueues": 4,
        "bodyBytesMax": 4 << 20,
    }


def test_a_repeated_and_a_smaller_batch_are_answered_and_not_published(
    broker: BackgroundBroker, client: SinkClient
) -> None:
    for batch_id in (0, 4):
        assert client.commit("q", batch_id, [staged_batch(client, batch_id, [b"%d" % batch_id])]).code == 0
    for batch_id in (4, 2):
        late = Staged("q", batch_id)
        answer = client.stage(late, TOPIC, 0, [b"again"])
        assert (answer.code, answer.ext["kept"]) == (0, False)
        assert client.end(late).ext["kept"] is False
        header = client.commit("q", batch_id, [late])
        assert (header.code, header.ext["repeated"], header.ext["lastBatchId"]) == (0, True, 4)
    assert client.commit("other", 4, [staged_batch(client, 4, [b"other"], "other")]).ext["repeated"] is False
    assert published(broker.address, TOPIC) == {0: [b"0", b"4", b"other"], 1: []}


def test_staged_data_may_be_sent_twice_and_is_removed_with_its_batch(
    broker: BackgroundBroker, client: SinkClient
) -> None:
    staged, forgotten = Staged("q", 0), Staged("q", 0)
    body = block_of(TOPIC, 0, [b"a", b"b"], staged.staging_id)
    more = block_of(TOPIC, 1, [b"c"], staged.staging_id)
    assert client.stage_raw(staged, body, 0).ext["position"] == len(body)
    assert client.stage_raw(staged, body, 0).ext["position"] == len(body), "it was sent again"
    assert client.stage_raw(staged, body + more, 0).ext["position"] == len(body) + len(more)
    assert client.stage(forgotten, TOPIC, 0, [b"never"]).code == 0
    assert client.known().ext["stagings"] == 2
    header = client.stage_raw(staged, more, len(body) + len(more) + 1)
    assert "the bytes between are lost" in why(header)
    header = client.end(staged)
    assert "3 messages" in why(header)
    assert int(str(client.known("q").ext["stagedBytes"])) > 0
    answer = client.commit("q", 0, [staged])
    assert "was not ended" in why(answer)
    assert client.abort("q", 0).ext["stagings"] == 0
    assert "does not exist" in why(client.end(staged))
    assert "does not exist" in why(client.commit("q", 0, [staged]))
    assert published(broker.address, TOPIC) == {0: [], 1: []}


def test_a_new_topic_is_created_by_the_commit_and_not_by_the_staging(
    broker: BackgroundBroker, client: SinkClient, new_reput_broker: Callable[..., BackgroundBroker]
) -> None:
    def staged_to(topic: str, query_id: str) -> Staged:
        staged = Staged(query_id, 0)
        for queue_id in range(int(str(client.known().ext["newTopicQueues"]))):
            assert client.stage(staged, topic, queue_id, [b"%d" % queue_id]).code == 0
        assert "'fresh' has no queue 4" in why(client.stage(staged, "fresh", 4, [b"beyond"]))
        assert client.end(staged).code == 0
        return staged

    with Admin(broker.address) as admin:
        staged_to("fresh", "q")
        assert client.abort("q", 0).code == 0
        staged, later = staged_to("fresh", "q"), staged_to("later", "r")
        assert not {"fresh", "later"} & set(admin.list_topics())
        assert client.commit("q", 0, [staged]).code == 0
        assert "fresh" in admin.list_topics()
        assert published(broker.address, "fresh") == {queue: [b"%d" % queue] for queue in range(4)}
        gone = staged_batch(client, 0, [b"a"], "s")
        admin.delete_topic(TOPIC)
        assert "was deleted after the batch had been staged" in why(client.commit("s", 0, [gone]))
    directory = broker.config.data_dir
    broker.stop()
    again = new_reput_broker(data_dir=directory)
    with SinkClient(again.address) as known_later:
        assert known_later.commit("r", 0, [later]).code == 0
    assert len(published(again.address, "later")) == 4
    strict = new_reput_broker(topics={"auto_create": False})
    with SinkClient(strict.address) as refused:
        assert "NO_TOPIC: topic 'fresh' does not exist" in why(refused.stage(Staged("q", 0), "fresh", 0, [b""]))


def test_a_commit_that_does_not_name_what_is_staged_is_refused(client: SinkClient) -> None:
    staged = staged_batch(client, 0, [b"a"])
    staged.checksum ^= 1
    assert "with checksum" in why(client.commit("q", 0, [staged]))
    staged.checksum ^= 1
    staged.messages += 1
    assert "1 message with" in why(client.commit("q", 0, [staged]))
    staged.messages -= 1
    assert "does not exist" in why(client.commit("q", 1, [staged]))
    assert client.commit("q", 0, [staged]).code == 0


def test_a_commit_into_a_topic_that_has_gone_since_is_refused(broker: BackgroundBroker, client: SinkClient) -> None:
    staged = staged_batch(client, 0, [b"a"])
    with Admin(broker.address) as admin:
        admin.delete_topic(TOPIC)
        header = client.commit("q", 0, [staged])
        assert "NO_TOPIC: topic 'orders' was deleted after the batch had been staged" in why(header)
        admin.create_topic(TOPIC, queues=2)
    assert published(broker.address, TOPIC) == {0: [], 1: []}
    assert client.known("q").ext["lastBatchId"] == -1
    assert client.commit("q", 0, [staged]).code == 0
    assert published(broker.address, TOPIC) == {0: [b"a"], 1: []}


def without_id(queue_id: int = 0) -> bytes:
    block = encode_put_block([Message(TOPIC, b"x")], TOPIC, queue_id, 1)
    return encode_staged_head(TOPIC, queue_id, 1, block) + block


def spoilt() -> bytes:
    body = bytearray(block_of(TOPIC, 0, [b"abc"], "u"))
    body[-30] ^= 1
    return bytes(body)


BAD_BODIES = [
    (b"", "there is no block"),
    (b"x" * 40, "begins with"),
    (block_of(TOPIC, 0, [b"a"], "u")[:-1], "truncated"),
    (spoilt(), "checksum"),
    (without_id(), "no unique id; give each record a property UNIQ_KEY"),
    (block_of(TOPIC, 9, [b"a"], "u"), "no queue 9"),
    (block_of(SINK_TOPIC, 0, [b"a"], "u"), "does not exist|belongs to the system"),
    (block_of(TOPIC, 0, [bytes(1 << 20)], "u"), "sink.staging_size_max"),
]


@pytest.mark.parametrize(("body", "text"), BAD_BODIES)
def test_what_cannot_be_published_is_not_staged(client: SinkClient, body: bytes, text: str) -> None:
    assert re.search(text, why(client.stage_raw(Staged("q", 0), body)))
    assert client.known().ext["stagedBytes"] == 0


@pytest.mark.parametrize(
    "changes", [{"query_id": ""}, {"query_id": "a b"}, {"batch_id": -1}, {"staging_id": "../../etc/x"}]
)
def test_names_that_cannot_be_are_refused(client: SinkClient, changes: dict[str, object]) -> None:
    staged = Staged(**{"query_id": "q", "batch_id": 0, **changes})  # type: ignore[arg-type]
    header = client.stage(staged, TOPIC, 0, [b"a"])
    assert why(header).startswith("INVALID_ARGUMENT")


def test_only_the_broker_writes_markers(client: SinkClient) -> None:
    assert client.commit("q", 0, [staged_batch(client, 0, [b"a"])]).code == 0
    block = bytes(encode_put_block([Message(TOPIC, b"x")], SINK_TOPIC, 0, 1))
    header, _ = client.request(RequestCode.PUT_MESSAGE, {"topic": SINK_TOPIC, "queueId": 0, "count": 1}, block)
    assert why(header).startswith("NO_PERMISSION")


def test_a_commit_is_done_though_its_client_has_gone(broker: BackgroundBroker, client: SinkClient) -> None:
    staged = staged_batch(client, 0, [b"%d" % number for number in range(2000)])
    with SinkClient(broker.address) as gone:
        gone.send(RequestCode.COMMIT_STAGED, {"queryId": "q", "batchId": 0}, CommitStagedBody([staged.part]).to_json())
        gone.send(RequestCode.QUERY_STAGED)
        assert gone.receive() is not None
    assert client.commit("q", 0, [staged]).code == 0
    assert len(published(broker.address, TOPIC)[0]) == 2000
