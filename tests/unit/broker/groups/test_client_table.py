"""Clients by connection and id, producers by group."""

from __future__ import annotations

from reput_broker.groups.client_table import ClientTable
from reput_broker.groups.membership import ProducerGroups
from reput_protocol.codes import LanguageCode
from support.member_fakes import FakeClient, channel_of


def test_a_client_is_known_by_its_connection_and_its_id() -> None:
    table, connection = ClientTable(), FakeClient()
    channel = table.heard(connection, "a", LanguageCode.JAVA, 479, 1.0)
    assert table.heard(connection, "a", LanguageCode.JAVA, 480, 2.0) is channel
    assert (channel.version, channel.last_heartbeat, channel.language_name) == (480, 2.0, "JAVA")
    assert table.get(connection) is channel
    assert table.find("a") is channel
    assert list(table) == [channel]
    assert table.gone(connection) is channel
    assert table.gone(connection) is None
    assert table.find("a") is None
    assert len(table) == 0


def test_an_id_belongs_to_the_connection_on_which_it_came_last() -> None:
    table, first, second = ClientTable(), FakeClient(), FakeClient()
    table.heard(first, "a", 0, 0, 1.0)
    reconnected = table.heard(second, "a", 0, 0, 2.0)
    assert table.find("a") is reconnected
    table.gone(first)
    assert table.find("a") is reconnected


def test_an_id_is_kept_while_one_of_its_connections_is_open() -> None:
    table, first, second = ClientTable(), FakeClient(), FakeClient()
    table.heard(first, "a", 0, 0, 1.0)
    table.heard(second, "a", 0, 0, 2.0)
    table.gone(second)
    found = table.find("a")
    assert found is not None
    assert found.client is first


def test_an_unknown_language_is_called_other() -> None:
    channel = channel_of("a")
    channel.language = 99
    assert channel.language_name == "OTHER"


def test_producers_are_picked_in_rotation_and_gone_ones_never() -> None:
    table = ClientTable()
    producers = ProducerGroups()
    connections = [FakeClient() for _ in range(3)]
    channels = [table.heard(c, f"p{n}", 0, 0, 0.0) for n, c in enumerate(connections)]
    for channel in channels:
        producers.register("pg", channel, 0.0)
        producers.register("other", channel, 0.0)
    assert list(channels[0].producer_groups) == ["pg", "other"]
    picked = [producers.pick("pg") for _ in range(6)]
    assert sorted(map(id, picked)) == sorted(map(id, channels * 2))
    connections[0].close("peer")
    assert channels[0] not in [producers.pick("pg") for _ in range(6)]
    for channel in channels:
        producers.gone(channel)
    assert producers.pick("pg") is None
    assert len(producers) == 0


def test_a_producer_is_picked_by_its_latest_connection() -> None:
    """The other one may be of a machine that lost power."""
    producers, dead, alive, other = ProducerGroups(), channel_of("a"), channel_of("a"), channel_of("b")
    for now, channel in enumerate((dead, other, alive)):
        producers.register("pg", channel, float(now))
    assert {producers.pick("pg") for _ in range(6)} == {alive, other}
    producers.register("pg", dead, 9.0)
    assert {producers.pick("pg") for _ in range(6)} == {dead, other}, "it was not dead"
    dead.client.close("peer")
    assert {producers.pick("pg") for _ in range(6)} == {alive, other}


def test_producers_that_send_no_heartbeat_expire_group_by_group() -> None:
    producers, channel = ProducerGroups(), channel_of("p")
    producers.register("a", channel, 10.0)
    producers.register("b", channel, 10.0)
    producers.register("b", channel, 50.0)
    assert producers.expire(30.0) == [channel]
    assert producers.producers("a") == []
    assert producers.producers("b") == [channel]
    assert list(channel.producer_groups) == ["b"]
    producers.unregister("a", channel)
    producers.unregister("b", channel)
    assert dict(producers.items()) == {}
