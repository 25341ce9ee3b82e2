from reput_broker.health import BrokerState, Health


def test_it_is_ready_once_recovered_and_until_it_drains() -> None:
    health = Health(clock=lambda: 5.0)
    assert not health.ready
    assert health.failing() == ["recovered"]
    health.state = BrokerState.RUNNING
    assert health.ready
    health.state = BrokerState.DRAINING
    assert not health.ready
    assert health.failing() == ["not_draining"]


def test_a_read_only_store_still_serves_pulls() -> None:
    health = Health()
    health.state = BrokerState.RUNNING
    health.state = BrokerState.READONLY
    assert health.ready
    assert not health.checks["writable"].ok


def test_a_check_remembers_since_when() -> None:
    now = 1.0
    health = Health(clock=lambda: now)
    health.set("disk", True)
    now = 2.0
    health.set("disk", True, "half full")
    assert health.checks["disk"].since_s == 1.0
    now = 3.0
    health.set("disk", False, "full")
    assert health.checks["disk"].since_s == 3.0


def test_the_report_names_each_check() -> None:
    health = Health(clock=lambda: 1.0)
    health.set("disk", False, "full", gates=True)
    health.state = BrokerState.RUNNING
    report = health.report()
    assert report["ready"] is False
    assert report["failing"] == ["disk"]
    assert report["checks"]["disk"] == {"ok": False, "since": 1.0, "detail": "full", "gates_readiness": True}
