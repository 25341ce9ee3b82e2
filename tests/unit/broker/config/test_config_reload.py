"""Reloading: live options change together, others wait for a restart, a mistake changes nothing."""

import pytest
import structlog

from reput_broker.compose.live_config import LiveConfig
from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_broker.observe.counters import Counters
from reput_broker.observe.health import Health
from reput_broker.observe.metrics import MetricsSources


def reloader(config: BrokerConfig, new: dict[str, object]) -> tuple[LiveConfig, MetricsSources]:
    sources = MetricsSources(config, Counters(), Health(), config_reload_time_s=1.0)
    return LiveConfig(config, lambda: BrokerConfig(**new), sources, clock=lambda: 7.0), sources


def test_live_options_change_for_everybody_and_others_wait() -> None:
    config = BrokerConfig(data_dir="a", limits={"connections": 5})
    limits = config.limits  # as a holder of a section sees it
    new: dict[str, object] = {
        "data_dir": "a",
        "port": 1,
        "shutdown_grace": "1s",
        "limits": {"connections": 9},
        "topics": {"auto_create": False},
    }
    reload, sources = reloader(config, new)
    with structlog.testing.capture_logs() as logs:
        changes = reload.reload()
    assert [(change.key, change.before, change.after, change.live) for change in changes] == [
        ("port", "10911", "1", False),
        ("shutdown_grace", '"20s"', '"1s"', True),
        ("topics.auto_create", "true", "false", True),
        ("limits.connections", "5", "9", True),
    ]
    assert limits.connections == 9
    assert config.shutdown_grace == 1.0
    assert config.topics.auto_create is False
    assert config.port == 10911
    assert logs[0]["event"] == "config_reloaded"
    assert logs[0]["needs_restart"] == ["port = 1"]
    assert (sources.config_reload_ok, sources.config_reload_time_s) == (True, 7.0)


def test_a_reload_changes_no_other_configuration() -> None:
    config, other = BrokerConfig(), BrokerConfig()
    reload, _ = reloader(config, {"topics": {"auto_create": False}})
    reload.reload()
    assert not config.topics.auto_create
    assert other.topics.auto_create
    assert BrokerConfig().topics.auto_create


def test_a_mistake_changes_nothing() -> None:
    config = BrokerConfig()
    reload, sources = reloader(config, {"limits": {"connections": 9, "frame_size": 1}})
    with structlog.testing.capture_logs() as logs, pytest.raises(ConfigError):
        reload.reload()
    assert config.limits.connections == 10_000
    assert logs[0]["event"] == "config_reload_failed"
    assert len(logs[0]["problems"]) == 1
    assert (sources.config_reload_ok, sources.config_reload_time_s) == (False, 1.0)


def test_a_later_success_clears_the_failure() -> None:
    config = BrokerConfig()
    failing, sources = reloader(config, {"port": "x"})
    with pytest.raises(ConfigError):
        failing.reload()
    LiveConfig(config, BrokerConfig, sources).reload()
    assert sources.config_reload_ok
