"""Broadcasting: every member gets everything and keeps its own offsets in a file; with every API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reput_client import Message
from reput_client.consume.group.commits import offset_file
from reput_client.errors import OffsetStoreInUse
from reput_protocol.codes import RequestCode
from support.faces import FACES, Face, scenario
from support.fakes import FakeBroker


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Face:
    monkeypatch.setenv("REPUT_OFFSETS_DIR", str(tmp_path / "offsets"))
    return Face(request.param)


@scenario
async def test_every_member_gets_everything_and_goes_on_where_it_was(
    face: Face, broker: FakeBroker, tmp_path: Path
) -> None:

    async with face.Producer(broker.address) as producer:
        for number in range(6):
            await producer.send(Message("t", b"%d" % number), queue_id=number % 2)
    got: dict[str, list[int]] = {"a": [], "b": []}
    for wanted in (2, 4):
        async with (
            face.Consumer(broker.address, group="g", topic="t", mode="broadcasting", instance="a") as a,
            face.Consumer(broker.address, group="g", topic="t", mode="broadcasting", instance="b") as b,
        ):
            for name, consumer in (("a", a), ("b", b)):
                assert [queue.topic for queue in consumer.assignment] == ["t", "t"]
                got[name] += [int((await consumer.receive(5.0)).body) for _ in range(wanted)]
    assert {name: sorted(bodies) for name, bodies in got.items()} == {name: [*range(6)] for name in "ab"}
    file = tmp_path / "offsets" / "a" / "g" / "offsets.json"
    kept = {row["queue_id"]: row["offset"] for row in json.loads(file.read_text())["offsets"]}
    assert kept == {0: 3, 1: 3}
    assert not broker.committed
    codes = {header.code for header in broker.requests}
    assert RequestCode.GET_CONSUMER_LIST_BY_GROUP not in codes
    assert {beat.consumers[0].message_model for beat in broker.groups.heartbeats} == {"BROADCASTING"}
    assert {s.topic for beat in broker.groups.heartbeats for s in beat.consumers[0].subscriptions} == {"t"}


@scenario
async def test_two_of_one_instance_would_spoil_each_others_offsets(face: Face, broker: FakeBroker) -> None:

    options = {"group": "g", "topic": "t", "mode": "broadcasting"}
    async with face.Consumer(broker.address, **options):
        with pytest.raises(OffsetStoreInUse, match="instance="):
            async with face.Consumer(broker.address, **options):
                pass
    async with face.Consumer(broker.address, **options):
        pass


def test_where_the_file_lies() -> None:
    assert offset_file("g", "DEFAULT", {}) == Path.home() / ".reput_offsets" / "DEFAULT" / "g" / "offsets.json"
    assert offset_file("g", "x", {"REPUT_OFFSETS_DIR": "/o"}) == Path("/o/x/g/offsets.json")
