"""Requests of operators to one broker: state, clients, configuration, drain, read-only, flush."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from reput_broker.background import BackgroundBroker
from reput_broker.compose.live_config import LiveConfig
from reput_broker.config.errors import ConfigError
from reput_broker.config.loading import load_config, with_values
from reput_broker.config.model import BrokerConfig
from reput_broker.config.options import is_live, option_fields
from reput_client.blocking import Admin, Consumer, Message, Producer, PullConsumer
from reput_protocol.errors import BrokerError, ErrorCode


@pytest.fixture
def admin(reput_broker: BackgroundBroker) -> Iterator[Admin]:
    with Admin(reput_broker.address) as admin:
        yield admin


def test_the_state_of_a_broker_has_typed_values(admin: Admin) -> None:
    status = admin.describe_broker()
    assert status["state"] == "running"
    assert status["ready"] is True
    assert isinstance(status["started_at"], float)
    assert status["store"]["end_offset"] == 0
    assert status["checks"]["recovered"]["ok"] is True


def test_clients_are_listed_with_role_groups_and_idle_time(reput_broker: BackgroundBroker, admin: Admin) -> None:
    with Producer(reput_broker.address) as producer:
        producer.send(Message("t", b"x"))
        with Consumer(reput_broker.address, group="readers", topic="t", start="earliest") as consumer:
            assert consumer.receive(10.0)
            found = {client.role: client for client in admin.list_clients()}
    assert set(found) >= {"admin", "producer", "consumer"}
    consumer_row = found["consumer"]
    assert consumer_row.groups == ["readers"]
    assert consumer_row.language == "PYTHON"
    assert consumer_row.client_id
    for client in found.values():
        assert client.address.startswith("127.0.0.1:")
        assert client.listener == "main"
        assert client.protocol in ("json", "msgpack")
        assert client.connected_millis >= client.idle_millis >= 0


def test_options_have_their_type_unit_and_source(admin: Admin) -> None:
    options = {option.key: option for option in admin.broker_config()}
    assert set(options) == set(option_fields(BrokerConfig))
    size = options["store.commit_log_file_size"]
    assert (size.value, size.text, size.unit, size.live) == (16 << 20, '"16MiB"', "B", False)
    assert (size.source, size.default) == ("code", '"1GiB"')
    grace = options["shutdown_grace"]
    assert (grace.value, grace.unit, grace.source, grace.live) == (20.0, "s", "default", True)
    assert options["name_servers"].value == []


def test_live_options_are_set_and_others_are_refused_with_the_reason(admin: Admin) -> None:
    assert [(c.key, c.before, c.after) for c in admin.set_broker_config({"topics.auto_create": "false"})] == [
        ("topics.auto_create", "true", "false")
    ]
    options = {option.key: option for option in admin.broker_config()}
    assert (options["topics.auto_create"].value, options["topics.auto_create"].source) == (False, "config set")
    for key, value, says in (
        ("data_dir", "/elsewhere", "needs a restart"),
        ("topics.auto_creat", "true", 'did you mean "topics.auto_create"'),
        ("shutdown_grace", "5", "the unit is missing"),
        ("limits.connections", "0", "out of range"),
    ):
        with pytest.raises(BrokerError, match=says) as refused:
            admin.set_broker_config({"topics.auto_create": "true", key: value})
        assert "nothing was changed" in str(refused.value)
    options = {option.key: option for option in admin.broker_config()}
    assert options["topics.auto_create"].value is False


def test_no_path_address_or_secret_is_live() -> None:
    for key, field in option_fields(BrokerConfig).items():
        if is_live(field):
            words = key.replace(".", "_").split("_")
            assert not {"dir", "dirs", "host", "port", "address", "file", "password", "key", "token"} & set(
                words[-1:]
            ), key


def test_values_that_were_set_last_until_the_next_reload(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('shutdown_grace = "7s"\n')
    config = load_config(path)
    from reput_broker.observe.counters import Counters
    from reput_broker.observe.health import Health
    from reput_broker.observe.metrics import MetricsSources

    live = LiveConfig(config, lambda: load_config(path), MetricsSources(config, Counters(), Health()))
    with structlog.testing.capture_logs():
        live.set({"shutdown_grace": "3s", "limits.connections": "7"})
        assert (config.shutdown_grace, config.limits.connections) == (3.0, 7)
        assert config.origins["shutdown_grace"] == "config set"
        live.reload()
    assert (config.shutdown_grace, config.limits.connections) == (7.0, 10_000)
    assert config.origins == {"shutdown_grace": str(path)}
    with pytest.raises(ConfigError, match="inside a program"):
        LiveConfig(config, None, MetricsSources(config, Counters(), Health())).reload()


def test_every_option_survives_a_change_of_another() -> None:
    config = BrokerConfig(
        data_dir="a b", port=0, http_port="off", name_servers=["n:1"], store={"flush": "async"}, advertise="h:5"
    )
    changed = with_values(config, {"topics.default_queues": "9"})
    assert changed.topics.default_queues == 9
    assert changed.model_dump(exclude={"topics"}) == config.model_dump(exclude={"topics"})


def test_read_only_by_an_operator_refuses_messages_only(reput_broker: BackgroundBroker, admin: Admin) -> None:
    with Producer(reput_broker.address) as producer, PullConsumer(reput_broker.address, group="g") as consumer:
        producer.send(Message("t", b"before"), queue_id=0)
        assert admin.set_intake("readonly") == "open"
        assert admin.set_intake("readonly") == "readonly"
        with pytest.raises(BrokerError, match="reput broker readonly --off") as refused:
            producer.send(Message("t", b"refused"), queue_id=0)
        assert refused.value.error is ErrorCode.READ_ONLY
        assert [m.body for m in consumer.pull("t", queue_id=0, offset=0, wait_s=0).messages] == [b"before"]
        consumer.commit("t", 0, 1)
        status = admin.describe_broker()
        assert (status["ready"], status["checks"]["intake"]["ok"]) == (True, False)
        assert admin.set_intake("open") == "readonly"
        producer.send(Message("t", b"after"), queue_id=0)


def test_a_drained_broker_is_not_ready_and_has_everything_on_disk(
    new_reput_broker: Callable[..., BackgroundBroker],
) -> None:
    broker = new_reput_broker(store={"flush": "async", "flush_interval": "10s", "flush_thorough_interval": "60s"})
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        producer.send(Message("t", b"x" * 100), ack="page_cache")
        admin.set_intake("draining")
        status = admin.describe_broker()
        assert (status["ready"], status["failing"]) == (False, ["intake"])
        assert status["store"]["flush_behind_bytes"] == 0
        with pytest.raises(BrokerError) as refused:
            producer.send(Message("t", b"refused"))
        assert refused.value.error is ErrorCode.DRAINING
        admin.set_intake("open")
        assert admin.describe_broker()["ready"] is True
        producer.send(Message("t", b"y"), ack="page_cache")
        assert admin.flush_log() == admin.describe_broker()["store"]["end_offset"] > 0
    with pytest.raises(ValueError, match="shut"):
        Admin(broker.address).set_intake("shut")  # type: ignore[arg-type]
