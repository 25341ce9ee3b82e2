"""A name server alone: its life, its pages, its configuration, and the command that runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.config.description import describe
from reput_broker.config.errors import ConfigError
from reput_broker.config.loading import load_config
from reput_broker.config.model import BrokerConfig
from reput_broker.name_server import DEFAULTS, DirectoryInUse, NameServer, check_options, is_option
from reput_broker.remoting.client import RemotingClient
from reput_broker.remoting.request import ClientAnswer
from reput_protocol.codes import RequestCode

CONF = Path(__file__).parents[4] / "conf" / "namesrv.toml"


def config(path: Path, **options: Any) -> BrokerConfig:
    return BrokerConfig(**{"data_dir": path / "names", "port": 0, "http_port": 0, **options})


async def ask(address: str, code: int, **ext: str) -> ClientAnswer:
    client = RemotingClient(address)
    answer = await client.call(code, ext, timeout_s=10)
    client.close()
    return answer


def page(names: NameServer, path: str) -> str:
    with urlopen(f"http://{names.http_address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.trio
async def test_a_broker_registers_and_the_pages_show_it(tmp_path: Path) -> None:
    async with NameServer(config(tmp_path)) as names:
        broker = BrokerConfig(data_dir=tmp_path / "broker", port=0, name_servers=[names.address])
        async with Broker(broker) as serving:
            with trio.fail_after(10):
                while not names.routes.registered:
                    await trio.sleep(0.02)
            route = await ask(names.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="TBW102")
            (data,) = json.loads(route.body)["brokerDatas"]
            assert data["brokerAddrs"] == {"0": serving.address}
            metrics = await trio.to_thread.run_sync(page, names, "/metrics")
            assert "\nreput_registered_brokers 1\n" in metrics
            assert await trio.to_thread.run_sync(page, names, "/readyz") == "ok\n"
            status = json.loads(await trio.to_thread.run_sync(page, names, "/status"))
            assert (status["state"], status["registered_brokers"]) == ("running", 1)
        assert not names.routes.registered


@pytest.mark.trio
async def test_settings_outlive_it_and_a_directory_has_one_owner(tmp_path: Path) -> None:
    item = {"namespace": "N", "key": "k"}
    async with NameServer(config(tmp_path)) as names:
        await ask(names.address, RequestCode.PUT_KV_CONFIG, **item, value="v")
        with pytest.raises(DirectoryInUse, match="give each its own data_dir"):
            async with NameServer(config(tmp_path)):
                pass
    async with NameServer(config(tmp_path, http_port="off")) as names:
        assert names.http_address is None
        assert (await ask(names.address, RequestCode.GET_KV_CONFIG, **item)).ext == {"value": "v"}
        shown = (await ask(names.address, RequestCode.GET_NAMESRV_CONFIG)).body.decode()
        assert 'http_port="off"\n' in shown or "http_port=off\n" in shown
        assert "store." not in shown


def test_the_file_has_every_option_with_its_default() -> None:
    given = check_options(load_config(CONF, {}, {}, DEFAULTS))
    rows = {row.key: row.value for row in describe(given) if is_option(row.key)}
    built_in = {row.key: row.value for row in describe(load_config(None, {}, {}, DEFAULTS)) if is_option(row.key)}
    assert rows == built_in
    assert given.origins.keys() == rows.keys()


def test_options_of_a_broker_are_refused_by_name() -> None:
    with pytest.raises(ConfigError) as refused:
        check_options(load_config(None, {"REPUT_STORE__FLUSH": "async"}, {"name_port": 1}, DEFAULTS))
    assert {problem.key for problem in refused.value.problems} == {"store.flush", "name_port"}


def test_the_command_runs_one_until_a_signal(tmp_path: Path) -> None:
    address = tmp_path / "address"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("REPUT_")}
    command = [sys.executable, "-m", "reput_cli", "namesrv", "--port", "0", "--http-port", "0"]
    command += ["--data-dir", str(tmp_path / "names"), "--address-file", str(address)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as process:
        deadline = time.monotonic() + 120
        while not address.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        answer = trio.run(lambda: ask(address.read_text().strip(), RequestCode.GET_BROKER_CLUSTER_INFO))
        assert json.loads(answer.body) == {"brokerAddrTable": {}, "clusterAddrTable": {}}
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert events == ["name_server_ready", "stopping", "name_server_stopped"]
