"""Options by code: useful defaults, and all mistakes reported at once with the nearest name."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_client.consume.group import handover
from reput_protocol.errors import ReputError
from support.config_problems import problems


def test_zero_configuration_is_a_useful_one() -> None:
    config = BrokerConfig()
    assert config.host == "127.0.0.1"
    assert config.port == 10911
    assert config.store.flush == "sync"
    assert config.store.commit_log_file_size == 1 << 30
    assert config.topics.auto_create
    assert config.topics.default_queues == 4
    assert config.origins == {}


def test_code_gives_nested_dicts_and_plain_bytes(tmp_path: Path) -> None:
    config = BrokerConfig(
        data_dir=str(tmp_path),
        port=0,
        store={"flush": "async", "commit_log_file_size": 1 << 20, "flush_interval": timedelta(milliseconds=20)},
        limits={"pull_bytes": "1MiB"},
    )
    assert config.data_dir == tmp_path
    assert config.store.commit_log_file_size == 1 << 20
    assert config.store.flush_interval == 0.02
    assert config.limits.pull_bytes == 1 << 20
    assert config.origins["store.flush"] == "code"


def test_the_environment_does_not_reach_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPUT_PORT", "1")
    assert BrokerConfig().port == 10911


def test_all_mistakes_are_reported_at_once() -> None:
    found = problems(
        port=70000,
        stoer={"flush": "sync"},
        store={"flush": "maybe", "sync_timeout": 5, "flush_intervall": "1s"},
        limits={"connections": 0},
        log={"level": "loud"},
        topics=3,
    )
    assert set(found) == {
        "port",
        "stoer",
        "store.flush",
        "store.sync_timeout",
        "store.flush_intervall",
        "limits.connections",
        "log.level",
        "topics",
    }
    assert "at most 65535" in found["port"]
    assert found["store.flush"] == "'sync' or 'async' is needed, not 'maybe'"
    assert "the unit is missing" in found["store.sync_timeout"]
    assert "at least 1" in found["limits.connections"]
    assert found["topics"].startswith("this is a section")


def test_unknown_keys_name_their_nearest_neighbour() -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(stoer={}, store={"flush_intervall": "1s"}, commit_log_file_size="1MiB", quux=1)
    nearest = {problem.key: problem.nearest for problem in refused.value.problems}
    assert nearest == {
        "stoer": "store",
        "store.flush_intervall": "store.flush_interval",
        "commit_log_file_size": "store.commit_log_file_size",
        "quux": None,
    }
    assert 'did you mean "store.flush_interval"? (from code)' in str(refused.value)


@pytest.mark.parametrize("value", ["10911", 3.5, True, None])
def test_a_port_is_a_whole_number(value: object) -> None:
    assert problems(port=value) == {"port": f"a whole number is needed, not {value!r}"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "broker.example"])
@pytest.mark.parametrize("key", ["host", "http_host"])
def test_listening_beyond_loopback_must_be_permitted(host: str, key: str) -> None:
    found = problems(**{key: host})
    assert set(found) == {key}
    assert "allow_insecure = true" in found[key]
    assert "access.enabled = true" in found[key]
    assert getattr(BrokerConfig(**{key: host, "allow_insecure": True}), key) == host
    assert getattr(BrokerConfig(**{key: host, "access": {"enabled": True}}), key) == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_permission(host: str) -> None:
    assert BrokerConfig(host=host).host == host


@pytest.mark.parametrize("value", ["broker", "broker:", ":1", "broker:x", "broker:0", "broker:70000", "0.0.0.0:10911"])
def test_an_advertised_address_that_cannot_be_dialled(value: str) -> None:
    assert set(problems(advertise=value)) == {"advertise"}


def test_name_servers_are_a_list_or_a_text_with_semicolons() -> None:
    """RocketMQ writes namesrvAddr with semicolons."""
    found = BrokerConfig(name_servers="a:1; b:2,a:1", advertise="c:3").name_servers
    assert found == ("a:1", "b:2")
    assert BrokerConfig(name_servers=["a:1"], advertise="c:3").name_servers == ("a:1",)
    assert BrokerConfig(name_servers="").name_servers == ()
    for wrong in ("a", "a:1;;b:2", 7, [7], ["0.0.0.0:9876"]):
        assert set(problems(name_servers=wrong)) == {"name_servers"}
    for wrong in ("a", "a:0", 7):
        assert set(problems(broker_id=1, ha={"role": "SLAVE", "master": wrong})) == {"ha.master"}


def test_advertise() -> None:
    assert BrokerConfig(advertise="broker.example:10911").advertise == "broker.example:10911"
    assert BrokerConfig(advertise="").advertise is None


OTHER_PORTS = ("name_port", "fast_port", "ha_port", "http_port")


def opened(**options: Any) -> list[int | None]:
    config = BrokerConfig(**options)
    return [config.port_to_open(option) for option in OTHER_PORTS]


def test_the_other_ports_follow_from_the_port() -> None:
    assert opened() == [9876, 10909, 10912, 10913]
    assert opened(port=20911) == [19876, 20909, 20912, 20913]
    assert opened(port=0) == [None] * 4
    assert opened(port=1035) == [None, 1033, 1036, 1037]
    assert opened(port=65535) == [64500, 65533, None, None]
    assert opened(port=0, name_port=1234, fast_port=0, ha_port=0, http_port="off") == [1234, 0, 0, None]
    assert opened(**dict.fromkeys(OTHER_PORTS, "off")) == [None] * 4
    assert BrokerConfig(name_port=None).port_to_open("name_port") == 9876


def test_the_http_port_is_a_free_one_where_none_follows_and_off_in_an_embedded_broker() -> None:
    for port, expected in ((10911, 10913), (20911, 20913), (0, 0), (65535, 0)):
        assert BrokerConfig(port=port).http_port_to_open(embedded=False) == expected
        assert BrokerConfig(port=port).http_port_to_open(embedded=True) is None
    assert BrokerConfig(port=0, http_port=1234).http_port_to_open(embedded=True) == 1234


@pytest.mark.parametrize("ports", [{"http_port": 12001}, {"name_port": 12001}, {"ha_port": 12002}])
def test_a_port_that_follows_makes_way_for_one_that_is_named(ports: dict[str, int]) -> None:
    [number] = ports.values()
    assert opened(port=12000, **ports).count(number) == 1


def test_only_a_port_that_follows_and_that_no_client_expects_may_be_missing() -> None:
    other = BrokerConfig(port=12000, name_port=1234)
    assert [option for option in OTHER_PORTS if other.may_miss(option)] == ["fast_port", "ha_port", "http_port"]
    assert not any(BrokerConfig().may_miss(option) for option in OTHER_PORTS)
    assert not BrokerConfig(port=12000, ha={"role": "SYNC_MASTER"}).may_miss("ha_port")
    assert not BrokerConfig(port=12000, ha={"in_sync_replicas": 2}).may_miss("ha_port")


@pytest.mark.parametrize("value", ["100ms", "30s", "39s"])
def test_a_lock_of_a_queue_outlasts_the_trust_of_its_member(value: str) -> None:
    found = problems(groups={"lock_timeout": value})
    assert set(found) == {"groups.lock_timeout"}
    assert "at least" in found["groups.lock_timeout"]
    shortest = BrokerConfig(groups={"lock_timeout": "40s"}).groups.lock_timeout
    assert shortest >= handover.TRUSTED_S + 10.0 >= handover.RENEW_INTERVAL_S + 20.0


def test_a_header_must_fit_into_a_frame() -> None:
    found = problems(limits={"frame_size": "64KiB", "header_size": "64KiB", "pull_bytes": "1MiB"})
    assert set(found) == {"limits.header_size", "limits.pull_bytes"}


def test_names_become_topics_and_obey_their_rules() -> None:
    found = problems(cluster="my cluster", broker_name="")
    assert set(found) == {"cluster", "broker_name"}


def test_it_cannot_be_changed() -> None:
    config = BrokerConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.port = 1
    with pytest.raises(ValueError, match="frozen"):
        config.store.flush = "async"


def test_config_errors_are_ours() -> None:
    with pytest.raises(ReputError):
        BrokerConfig(port=-1)
