"""Options that contradict each other are refused, with where each came from."""

from typing import Any

import pytest

from reput_broker.config.errors import ConfigError
from reput_broker.config.loading import load_config
from reput_broker.config.model import BrokerConfig
from support.config_problems import problems


@pytest.mark.parametrize(
    ("ports", "named", "other"),
    [
        ({"port": 1234, "http_port": 1234}, "http_port", "that of port already"),
        ({"port": 1234, "name_port": 1234}, "name_port", "that of port already"),
        ({"port": 0, "name_port": 1234, "http_port": 1234}, "http_port", "that of name_port already"),
        ({"http_port": 10911}, "http_port", "that of port already"),
        ({"http_port": 9876}, "http_port", r"that of name_port (auto) already"),
        ({"name_port": 10913}, "name_port", r"that of http_port (auto) already"),
        ({"http_port": 10912}, "http_port", r"that of ha_port (auto) already"),
        ({"http_port": 10909}, "http_port", r"that of fast_port (auto) already"),
        ({"port": 1234, "http_port": 1234, "host": "0.0.0.0", "allow_insecure": True}, "http_port", "port"),
    ],
)
def test_two_listeners_cannot_share_a_port(ports: dict[str, Any], named: str, other: str) -> None:
    found = problems(**ports)
    assert set(found) == {named}
    assert other in found[named]
    assert "choose another" in found[named]


@pytest.mark.parametrize(
    "ports",
    [
        {"port": 0, "name_port": 0, "http_port": 0},
        {"port": 1234, "http_port": 1234, "http_host": "127.0.0.2"},
        {"port": 9876, "http_port": 10913},
        {"port": 1234, "name_port": "off", "http_port": "off", "ha_port": "off", "fast_port": "off"},
    ],
)
def test_ports_that_differ_and_addresses_that_differ_are_fine(ports: dict[str, Any]) -> None:
    assert BrokerConfig(**ports).port == ports["port"]


def test_the_largest_message_must_fit_into_a_frame() -> None:
    found = problems(limits={"frame_size": "4MiB", "pull_bytes": "1MiB"})
    assert set(found) == {"limits.frame_size"}
    assert "store.message_size_max (4MiB)" in found["limits.frame_size"]
    assert "raise it to 4160KiB or more" in found["limits.frame_size"]
    BrokerConfig(limits={"frame_size": "4160KiB", "pull_bytes": "1MiB"})
    BrokerConfig(limits={"frame_size": "1MiB", "pull_bytes": "64KiB"}, store={"message_size_max": "64KiB"})


def test_a_combination_names_where_its_option_came_from() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"REPUT_PORT": "1234", "REPUT_HTTP_PORT": "1234"})
    assert [(p.key, p.origin) for p in refused.value.problems] == [("http_port", "REPUT_HTTP_PORT")]


def test_a_missing_option_names_where_the_one_that_needs_it_came_from() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"REPUT_TLS__MODE": "required", "REPUT_ACCESS__BROKER_USER": "b"})
    origins = {problem.key: problem.origin for problem in refused.value.problems}
    assert origins == {"tls.cert": "REPUT_TLS__MODE", "access.broker_secret": "REPUT_ACCESS__BROKER_USER"}


@pytest.mark.parametrize(("value", "needed"), [("", "a directory is needed"), (3, "a path is needed, not 3")])
def test_a_store_directory_is_a_path(value: object, needed: str) -> None:
    assert problems(data_dir=value)["data_dir"].startswith(needed)


@pytest.mark.parametrize(
    ("values", "named", "text"),
    [
        ({"broker_id": 1}, "broker_id", "is the id of a slave and ha.role is ASYNC_MASTER"),
        ({"ha": {"role": "SLAVE", "master": "a:1"}}, "broker_id", "1 or above"),
        ({"ha": {"role": "SLAVE"}, "broker_id": 1}, "ha.master", "set name_servers"),
        ({"ha": {"master": "a:1"}}, "ha.master", 'set ha.role = "SLAVE"'),
        ({"ha": {"master_ha_address": "a:1"}}, "ha.master_ha_address", "follows no master"),
        ({"port": 0, "ha": {"role": "SYNC_MASTER"}}, "ha.role", "ha_port is off"),
        ({"port": 0, "ha": {"in_sync_replicas": 2}}, "ha.in_sync_replicas", "ha_port is off"),
        (
            {"ha": {"send_heartbeat_interval": "5s", "housekeeping_interval": "5s"}},
            "ha.housekeeping_interval",
            "more than ha.send_heartbeat_interval (5s)",
        ),
    ],
)
def test_a_role_that_contradicts_another_option(values: dict[str, Any], named: str, text: str) -> None:
    found = problems(**values)
    assert set(found) == {named}
    assert text in found[named]


@pytest.mark.parametrize(
    "values",
    [
        {"ha": {"role": "SYNC_MASTER", "in_sync_replicas": 2}},
        {"port": 0, "ha_port": 0, "ha": {"in_sync_replicas": 3}},
        {"port": 0, "broker_id": 1, "ha": {"role": "SLAVE", "master": "a:1", "in_sync_replicas": 2}},
        {"broker_id": 2, "ha": {"role": "SLAVE"}, "name_servers": ["localhost:9876"]},
    ],
)
def test_roles_that_fit(values: dict[str, Any]) -> None:
    assert BrokerConfig(**values).ha.role == values["ha"].get("role", "ASYNC_MASTER")


def test_tls_to_brokers_without_an_authority_of_their_own_needs_a_name_or_a_user() -> None:
    assert "tls.server_name" in problems(tls={"connect": True})["tls.connect"]
    for more in (
        {"tls": {"connect": True, "ca": "ca.pem"}},
        {"tls": {"connect": True, "server_name": "brokers.example"}},
        {"tls": {"connect": True}, "access": {"broker_user": "b", "broker_secret": "a-secret-of-16-chars"}},
    ):
        BrokerConfig(**more)
