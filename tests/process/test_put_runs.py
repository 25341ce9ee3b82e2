"""Many puts in one write: each is answered separately, in order, with any neighbours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from reput_protocol.codes import LanguageCode, RequestCode
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import decode_record
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import Header, HeaderType, Value
from support.broker_process import BrokerProcess
from support.raw_client import RawClient

pytestmark = pytest.mark.process

PUT = RequestCode.PUT_MESSAGE
FIRST_OPAQUE = 1_000_000  # written in four bytes, as those of a long-lived producer are


@pytest.fixture(scope="module", params=["sync", "async"])
def broker(module_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    environment = {"REPUT_STORE__FLUSH": request.param}
    with BrokerProcess(module_path / request.param, environment=environment) as process:
        yield process


def frame(
    opaque: int, topic: str, queue_id: int, *bodies: bytes, ack: str = "page_cache", spoil: bool = False
) -> bytes:
    block = encode_put_block([Message(topic, body, tag="t") for body in bodies], topic, queue_id, 1_700_000_000_000)
    if spoil:
        block = block[:8] + bytes([block[8] ^ 1]) + block[9:]  # the first body's checksum
    ext: dict[str, Value] = {"topic": topic, "queueId": queue_id, "count": len(bodies), "ack": ack}
    return encode_frame(Header(PUT, opaque, ext=ext, language=int(LanguageCode.PYTHON)), HeaderType.MSGPACK, block)


def answers_to(client: RawClient, frames: list[bytes]) -> dict[int, Header]:
    """Send all frames with one write; return the answers by opaque, in the order in which they came."""
    client.send_bytes(b"".join(frames))
    answers: dict[int, Header] = {}
    for _ in frames:
        header, _, header_type = client.receive()
        assert header_type == HeaderType.MSGPACK
        assert header.opaque not in answers, "one answer each"
        answers[header.opaque] = header
    return answers


def bodies_of(client: RawClient, topic: str, queue_id: int, end: int) -> list[bytes]:
    """Pull a queue whole, once it reaches `end`, and check each message's place."""
    bodies: list[bytes] = []
    deadline = time.monotonic() + 10
    while len(bodies) < end:
        assert time.monotonic() < deadline
        ext: dict[str, Value] = {"consumerGroup": "g", "topic": topic, "queueId": queue_id, "sysFlag": 4}
        ext |= {"queueOffset": len(bodies), "maxMsgNums": 1000, "commitOffset": 0, "suspendTimeoutMillis": 0}
        _, data = client.request(RequestCode.PULL_MESSAGE, ext | {"subVersion": 0})
        position = 0
        while position < len(data):
            record = decode_record(data, position)
            assert record.queue_offset == len(bodies)
            bodies.append(record.body)
            position += int.from_bytes(data[position : position + 4])
    return bodies


def created(client: RawClient, topic: str, queues: int = 4) -> str:
    ext: dict[str, Value] = {"topic": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
    ext |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False}
    header, _ = client.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    assert header.code == 0
    return topic


@pytest.mark.parametrize("ack", ["page_cache", "flushed"])
def test_every_put_of_a_run_gets_its_own_place(broker: BrokerProcess, ack: str) -> None:
    random = Random(7)
    with RawClient(broker.address) as client:
        topic = created(client, f"places_{ack}")
        sent: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(4)}
        frames, wanted = [], {}
        for number in range(300):
            queue_id = random.randrange(4)
            bodies = [
                b"%d.%d" % (number, part) * random.randrange(1, 40) for part in range(random.choice([1, 1, 1, 2, 30]))
            ]
            opaque = FIRST_OPAQUE + number
            wanted[opaque] = (queue_id, len(sent[queue_id]))
            frames.append(frame(opaque, topic, queue_id, *bodies, ack=ack))
            sent[queue_id] += bodies
        answers = answers_to(client, frames)
        assert list(answers) == list(wanted), "answers to puts of one level come in their order"
        assert {header.code for header in answers.values()} == {0}
        assert {header.ext["ack"] for header in answers.values()} == {ack}
        places = {opaque: (header.ext["queueId"], header.ext["queueOffset"]) for opaque, header in answers.items()}
        assert places == wanted
        physical = [int(str(header.ext["physicalOffset"])) for header in answers.values()]
        assert physical == sorted(set(physical))
        for queue_id, bodies in sent.items():
            assert bodies_of(client, topic, queue_id, len(bodies)) == bodies


def test_a_bad_put_among_good_ones_is_the_only_one_refused(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        topic = created(client, "one_bad")
        frames = [frame(FIRST_OPAQUE + n, topic, 0, b"%d" % n, spoil=n == 5) for n in range(12)]
        answers = answers_to(client, frames)
        codes = [answers[FIRST_OPAQUE + n].code for n in range(12)]
        assert [n for n in range(12) if codes[n]] == [5]
        assert "CRC" in str(answers[FIRST_OPAQUE + 5].remark)
        assert bodies_of(client, topic, 0, 11) == [b"%d" % n for n in range(12) if n != 5]


def test_acks_topics_and_refusals_may_be_mixed_in_one_write(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        topic = created(client, "mixed")
        kinds: list[dict[str, str | int]] = [
            {"ack": "page_cache"},
            {"ack": "flushed"},
            {"ack": "replicated"},
            {"queue_id": 99},
            {"topic": "made_by_mixed"},
        ]
        random = Random(3)
        frames, wanted = [], {}
        stored: list[bytes] = []
        made: list[bytes] = []
        for number in range(200):
            kind = random.choice(kinds)
            body = b"%d" % number
            name = str(kind.get("topic", topic))
            ack = str(kind.get("ack", "page_cache"))
            frames.append(frame(FIRST_OPAQUE + number, name, int(kind.get("queue_id", 0)), body, ack=ack))
            refused = ack == "replicated" or "queue_id" in kind
            wanted[FIRST_OPAQUE + number] = not refused
            if not refused:
                (made if name != topic else stored).append(body)
        answers = answers_to(client, frames)
        assert {opaque: header.code == 0 for opaque, header in answers.items()} == wanted
        assert bodies_of(client, topic, 0, len(stored)) == stored
        assert sorted(bodies_of(client, "made_by_mixed", 0, len(made))) == sorted(made)


def test_puts_and_other_requests_alternate_in_one_write(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        topic = created(client, "alternating")
        frames = []
        for number in range(60):
            if number % 3 == 2:
                ext: dict[str, Value] = {"topic": topic, "queueId": 0}
                header = Header(RequestCode.GET_MIN_OFFSET, FIRST_OPAQUE + number, ext=ext)
                frames.append(encode_frame(header, HeaderType.MSGPACK))
            else:
                frames.append(frame(FIRST_OPAQUE + number, topic, 0, b"%d" % number))
        answers = answers_to(client, frames)
        assert list(answers) == [FIRST_OPAQUE + number for number in range(60)]
        assert {header.code for header in answers.values()} == {0}
        assert len(bodies_of(client, topic, 0, 40)) == 40


def test_a_run_across_the_end_of_a_log_file_loses_nothing(tmp_path: Path) -> None:
    environment = {"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "256KiB", "REPUT_STORE__FLUSH": "async"}
    with BrokerProcess(tmp_path / "store", environment=environment) as broker, RawClient(broker.address) as client:
        topic = created(client, "rolls")
        bodies = [b"%05d" % number * 100 for number in range(2000)]
        for start in range(0, len(bodies), 100):
            frames = [
                frame(FIRST_OPAQUE + start + index, topic, 0, body)
                for index, body in enumerate(bodies[start : start + 100])
            ]
            answers = answers_to(client, frames)
            assert [header.ext["queueOffset"] for header in answers.values()] == list(range(start, start + 100))
        assert bodies_of(client, topic, 0, len(bodies)) == bodies
