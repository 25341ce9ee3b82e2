"""A real Prometheus against a real broker: what it accepts, what it scrapes, what it answers.

Needs the programs `prometheus` and `promtool` (Debian: apt install prometheus); says which is missing otherwise.
"""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from reput_broker.observe.catalogue import METRICS
from reput_broker.observe.rocketmq_catalogue import ROCKETMQ_METRICS
from reput_client.blocking import Consumer, Message, Producer
from support.broker_process import BrokerProcess, free_port
from support.scrapes import check, known_series, read, value

pytestmark = pytest.mark.process

CONF = Path(__file__).resolve().parents[2] / "conf" / "prometheus"
RULES_TEST = Path(__file__).resolve().parents[1] / "ops" / "rules_test.yml"
DEADLINE_S = 30.0


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"the program {name} is not installed (Debian: apt install prometheus)")
    return path


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    options = {"REPUT_STORE__COMMIT_LOG_FILE_SIZE": "16MiB", "REPUT_PROXY_PORT": "0"}
    with BrokerProcess(module_path / "store", environment=options) as process:
        with Producer(process.address, group="metrics") as producer:
            producer.send_batch([Message("metered", b"x" * 100, tag="t") for _ in range(250)])
        yield process


def metrics_page(broker: BrokerProcess, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}{path}", timeout=5.0) as answer:
        page: bytes = answer.read()
        return page.decode()


def test_the_page_of_a_live_broker_keeps_to_the_catalogue(broker: BrokerProcess) -> None:
    with Consumer(broker.address, group="readers", topic="metered", start="earliest") as consumer:
        assert consumer.receive(10.0)
    page = metrics_page(broker)
    missing = {name for name, _ in known_series(METRICS) - read(page).keys()}
    assert all(name.startswith("reput_replica_") for name in missing), "those of a slave"
    absent = set(METRICS) - check(page, METRICS, "reput_")
    others = {  # of what this broker has not had
        "reput_delayed_messages",
        "reput_delayed_delivered_total",
        "reput_delayed_cancelled_total",
        "reput_popped_messages",
        "reput_pop_revive_due_seconds",
        "reput_tls_certificate_end_time_seconds",
        "reput_name_server_registered",
        "reput_proxy_requests_total",
        "reput_name_server_registrations_total",
        "reput_replication_lag_bytes",
        "reput_replication_lag_seconds",
        "reput_schedule_messages_sent_total",
        "reput_schedule_state",
        "reput_transactions_open",
        "reput_transactions_total",
        "reput_transaction_checks_total",
    }
    assert absent - others == {name for name in METRICS if name.startswith("reput_replica_")}
    assert value(read(page), "reput_deliver_latency_seconds_count", topic="metered") >= 1
    rocketmq = metrics_page(broker, "/metrics/rocketmq")
    assert {"rocketmq_messages_in_total", "rocketmq_consumer_lag_messages"} <= check(
        rocketmq, ROCKETMQ_METRICS, "rocketmq_"
    )


def test_promtool_accepts_the_page(broker: BrokerProcess) -> None:
    done = subprocess.run(
        [program("promtool"), "check", "metrics"],
        input=metrics_page(broker),
        capture_output=True,
        text=True,
        check=False,
    )
    # promtool's linter also names what the standard process collector is called; ours must be clean.
    ours = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("reput_")]
    assert ours == []
    assert done.returncode in (0, 3), done.stderr  # 3: accepted, with remarks of the linter


def test_promtool_accepts_configuration_and_rules() -> None:
    promtool = program("promtool")
    # The second one names files that docs/security.md makes.
    tls = ["config", "--syntax-only", "prometheus-tls.yml"]
    for arguments in (["config", "prometheus.yml"], tls, ["rules", "rules.yml"]):
        done = subprocess.run([promtool, "check", *arguments], cwd=CONF, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_beyond_its_limit_and_not_within() -> None:
    alerts = re.findall(r"- alert: (\w+)", (CONF / "rules.yml").read_text())
    tested = re.findall(r"alertname: (\w+)", RULES_TEST.read_text())
    assert [*dict.fromkeys(tested)] == alerts
    assert min(Counter(tested).values()) == 2
    command = [program("promtool"), "test", "rules", str(RULES_TEST)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def prometheus(broker: BrokerProcess, tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes the broker four times a second and evaluates the shipped rules; yields its URL."""
    config = tmp_path / "prometheus.yml"
    config.write_text(f"""
global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}
rule_files: ["{CONF / "rules.yml"}"]
scrape_configs:
  - job_name: reput
    static_configs: [{{targets: ["127.0.0.1:{broker.http_port}"]}}]
""")
    url = f"127.0.0.1:{free_port()}"
    command = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    log_path = tmp_path / "prometheus.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={url}"], stdout=log, stderr=log)
    try:
        yield f"http://{url}"
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
        assert "level=error" not in log_path.read_text(), log_path.read_text()[-2000:]


def ask(url: str, path: str, **parameters: str) -> dict[str, object]:
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(parameters)}", timeout=5.0) as answer:
        document = json.load(answer)
    assert document["status"] == "success"
    data: dict[str, object] = document["data"]
    return data


def answer_of(url: str, expression: str) -> float | None:
    result = ask(url, "/api/v1/query", query=expression)["result"]
    assert isinstance(result, list)
    return float(result[0]["value"][1]) if result else None


def test_prometheus_counts_the_messages_put(broker: BrokerProcess, prometheus: str) -> None:
    expression = 'sum(reput_messages_in_total{topic="metered"})'
    started_at = time.monotonic()
    counted: float | None = None
    while counted != 250 and time.monotonic() - started_at < DEADLINE_S:
        time.sleep(0.1)
        try:
            counted = answer_of(prometheus, expression)
        except OSError:
            continue  # Prometheus is still starting
    assert counted == 250
    with Producer(broker.address, group="metrics") as producer:
        producer.send(Message("metered", b"one more"))
    while counted != 251 and time.monotonic() - started_at < 2 * DEADLINE_S:
        time.sleep(0.1)
        counted = answer_of(prometheus, expression)
    assert counted == 251
    assert answer_of(prometheus, "reput_ready") == 1
    assert answer_of(prometheus, "up") == 1


def test_no_shipped_rule_fails_and_a_healthy_broker_fires_none(prometheus: str) -> None:
    started_at = time.monotonic()
    unknown = ["not asked yet"]
    rules: list[dict[str, object]] = []
    while unknown and time.monotonic() - started_at < DEADLINE_S:
        time.sleep(0.1)
        try:
            groups = ask(prometheus, "/api/v1/rules")["groups"]
        except OSError:
            continue
        assert isinstance(groups, list)
        rules = [rule for group in groups for rule in group["rules"]]
        unknown = [str(rule["name"]) for rule in rules if rule["health"] == "unknown"]
    assert rules
    assert unknown == []
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
