from pathlib import Path

import pytest

from compose_rules import compose_problems

REPOSITORY = Path(__file__).resolve().parents[3]
COMPOSE = REPOSITORY / "docker-compose.yml"


def test_the_shipped_file_keeps_every_promise() -> None:
    assert compose_problems(COMPOSE) == []


@pytest.mark.parametrize(
    ("kept", "broken", "problem"),
    [
        ('"127.0.0.1:10911:10911"', '"10911:10911"', "reput: port 10911:10911 is published beyond loopback"),
        ("read_only: true", "read_only: false", "reput: its root file system is writable"),
        ("cap_drop: [ALL]", "cap_drop: []", "reput: it keeps capabilities"),
        ("init: true", "init: false", "reput: init is not true"),
        ("- reput-data:/var/lib/reput", "- reput-data:/data", "reput: /var/lib/reput is in no named volume"),
        ("- reput-data:", "- other-data:", "reput: volume 'other-data' is not declared"),
        ("./conf/prometheus:", "./conf/gone:", "prometheus: ./conf/gone is mounted but does not exist"),
        ("service_healthy", "service_started", "prometheus: it does not wait until reput is healthy"),
        ("prom/prometheus:v3.5.0", "prom/prometheus", "prometheus: its image has no version"),
        ("stop_grace_period", "stop_grace", "reput: unknown key 'stop_grace'"),
        ("  grafana:", "  graphs:", "service 'grafana' is missing"),
    ],
)
def test_a_broken_promise_is_named(tmp_path: Path, kept: str, broken: str, problem: str) -> None:
    text = COMPOSE.read_text()
    assert kept in text
    for directory in ("prometheus", "grafana"):
        (tmp_path / "conf").mkdir(exist_ok=True)
        (tmp_path / "conf" / directory).symlink_to(REPOSITORY / "conf" / directory)
    path = tmp_path / "docker-compose.yml"
    path.write_text(text.replace(kept, broken))
    assert any(problem in found for found in compose_problems(path))
