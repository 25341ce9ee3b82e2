"""The quick form of `make soak KIND=scan`, and that it notices a broker that answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from reput_broker import Broker, BrokerConfig
from reput_protocol.codes import RequestCode
from scan.findings import UNAVAILABLE
from scan.requests import Names, plain, scan_requests

_NAMES = Names(("orders", "billing"), ("no-topic", "no-group"))


@pytest.mark.process
def test_without_a_user_a_client_sees_the_health_page_only() -> None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == UNAVAILABLE or done.stderr.startswith("unshare: "):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.trio
async def test_a_broker_that_answers_is_noticed(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path, port=0, store={"commit_log_file_size": "1MiB", "index": False})
    async with Broker(config) as broker:
        host, _, port = broker.address.rpartition(":")
        codes = (RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.GET_ROUTEINFO_BY_TOPIC)
        connect = plain((host, int(port)))
        findings = await trio.to_thread.run_sync(lambda: [*scan_requests(int(port), connect, _NAMES, codes)])
    asked = [finding for finding in findings if finding.tried.startswith("requests")]
    assert len(asked) == 3
    assert all(finding.wrong for finding in asked)
    assert not any(finding.wrong for finding in findings if finding not in asked)
