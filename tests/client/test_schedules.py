"""Schedules as programs create, change and list them, with each API."""

from __future__ import annotations

import pytest

from reput_client import Message
from reput_protocol.commands.schedule import MissedTimes
from reput_protocol.errors import BrokerError, InvalidMessage, NotFound
from support.faces import Face, scenario


@scenario
async def test_a_schedule_is_created_sends_and_is_deleted(face: Face, real_address: str) -> None:
    topic, name = f"scheduled-{face.name}", f"every-second-{face.name}"
    message = Message(topic, b"tick", tag="t", keys=["k"], properties={"colour": "red"})
    async with face.Admin(real_address) as admin:
        await admin.create_schedule(name, "@every 1s", message, ordering_key="o", missed="all", catch_up_s=60.0)
        (listed,) = await admin.list_schedules(topic)
        definition = listed.definition
        assert (definition.name, definition.when, definition.message_body) == (name, "@every 1s", b"tick")
        assert (definition.ordering_key, definition.missed, definition.catch_up_s) == ("o", MissedTimes.ALL, 60.0)
        assert (listed.is_paused, listed.next_ms) == (False, listed.created_ms + 1000)
        while (await admin.describe_schedule(name)).last_time is None:
            await face.sleep(0.05)
        await admin.pause_schedule(name)
        paused = await admin.describe_schedule(name)
        assert (paused.is_paused, paused.next_time) == (True, None)
        assert paused.last_message_id is not None
        sent = await admin.view_message(paused.last_message_id)
        assert (sent.topic, sent.body, sent.tag, sent.keys) == (topic, b"tick", "t", ("k",))
        assert (sent.ordering_key, sent.get_property("__SCHEDULE")) == ("o", name)
        by_hand = await admin.view_message(await admin.run_schedule(name))
        assert (by_hand.body, by_hand.get_property("__SCHEDULE_TIME")) == (b"tick", None)
        await admin.resume_schedule(name)
        assert (await admin.describe_schedule(name)).next_time is not None
        await admin.delete_schedule(name)
        assert await admin.list_schedules(topic) == []
        with pytest.raises(NotFound, match="there is no schedule"):
            await admin.pause_schedule(name)


@scenario
async def test_what_cannot_be_a_schedule_is_refused(face: Face, real_address: str) -> None:
    name = f"refused-{face.name}"
    async with face.Admin(real_address) as admin:
        with pytest.raises(BrokerError, match="has the minute '61' at position 1"):
            await admin.create_schedule(name, "61 * * * *", Message("scheduled", b""))
        for message in (
            Message("scheduled", b"", delay_s=1.0),
            Message("scheduled", b"", unique_id="id"),
            Message("scheduled", value=1),
        ):
            with pytest.raises(InvalidMessage, match="the message of a schedule"):
                await admin.create_schedule(name, "@hourly", message)
        await admin.create_schedule(name, "@hourly", Message("scheduled", b""), time_zone="Europe/Berlin")
        with pytest.raises(BrokerError, match="another schedule"):
            await admin.create_schedule(name, "@daily", Message("scheduled", b""))
        await admin.create_schedule(name, "@daily", Message("scheduled", b""), replace=True)
        assert (await admin.describe_schedule(name)).definition.when == "@daily"
        await admin.delete_schedule(name)
