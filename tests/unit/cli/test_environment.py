"""Unknown variables with the project's prefix: a start refuses them, other commands warn of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reput_broker.access.control import NoUsers
from reput_broker.config.environment import OTHER_VARIABLES, is_service_link, unknown_variables
from reput_broker.config.loading import load_config, option_variables
from reput_cli.failures import CommandFailed
from reput_cli.root import root
from reput_protocol.exit_codes import ExitCode

LINKS = {
    "REPUT_PORT": "tcp://10.0.0.7:10911",
    "REPUT_PORT_10911_TCP": "tcp://10.0.0.7:10911",
    "REPUT_PORT_10911_TCP_ADDR": "10.0.0.7",
    "REPUT_SERVICE_HOST": "10.0.0.7",
    "REPUT_SERVICE_PORT": "10911",
    "REPUT_SERVICE_PORT_METRICS": "10913",
    "REPUT_HTTP_PORT": "tcp://10.0.0.8:80",  # of a service named reput-http
    "REPUT_BROKER_SERVICE_HOST": "10.0.0.9",
    "REPUT_BROKER_PORT_10911_TCP_PROTO": "tcp",
    "REPUT_BROKER_PORT": "tcp://10.0.0.9:10911",
}
"""What Kubernetes sets for services named `reput`, `reput-http` and `reput-broker`."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("REPUT_")]:
        monkeypatch.delenv(name)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(root, arguments)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *[(f"REPUT_{name}", "is unknown.") for name in ("PASSWORD", "OUTPUT")],
        ("REPUT_TLS_CERT", "is unknown. Did you mean REPUT_TLS__CERT?"),
        ("REPUT_SERVERS", "is unknown. Did you mean REPUT_SERVER?"),
        ("REPUT_STORE__FLUSSH", "is unknown. Did you mean REPUT_STORE__FLUSH?"),
    ],
)
def test_a_command_warns_of_unknown_variables(monkeypatch: pytest.MonkeyPatch, name: str, says: str) -> None:
    monkeypatch.setenv(name, "x")
    result = run("context", "list")
    assert result.exit_code == 0
    assert result.stderr.splitlines() == [f"warning: the environment variable {name} {says}"]


@pytest.mark.parametrize("command", [("config", "check"), ("serve", "--check")])
def test_a_start_and_its_check_refuse_them(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("REPUT_STORE__FLUSSH", "x")
    with pytest.raises(CommandFailed, match='unknown variable; did you mean "REPUT_STORE__FLUSH"') as refused:
        CliRunner().invoke(root, command, catch_exceptions=False)
    assert refused.value.code == ExitCode.USAGE
    monkeypatch.delenv("REPUT_STORE__FLUSSH")
    assert run(*command).exit_code == 0


def test_a_command_runs_with_the_variables_of_options_and_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"REPUT_ADVERTISE": "a:1", "REPUT_STORE__FLUSH": "async", "REPUT_ADVERTISE_FILE": "/run/x"}
    for name, value in (LINKS | known | dict.fromkeys(OTHER_VARIABLES, "x")).items():
        monkeypatch.setenv(name, value)
    result = run("topic", "list", "--help")
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_broker_refuses_them_as_well() -> None:
    of_options = option_variables()
    assert unknown_variables({"REPUT_TLS_CERT": "x", "REPUT_PORTT": "1"}, of_options) == {
        "REPUT_TLS_CERT": "REPUT_TLS__CERT",
        "REPUT_PORTT": "REPUT_PORT",
    }
    with pytest.raises(ValueError, match="REPUT_PASSWORD: unknown variable"):
        load_config(None, {"REPUT_PASSWORD": "x"})


def test_variables_of_kubernetes_are_not_options() -> None:
    config = load_config(None, LINKS)
    assert (config.port, config.http_port, config.origins) == (10911, "auto", {})
    assert not any(is_service_link(name, "10911") for name in option_variables())


def test_health_takes_no_address_of_kubernetes_for_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPUT_HTTP_PORT", LINKS["REPUT_HTTP_PORT"])
    asked: list[str] = []

    def refuse(url: str, **_options: object) -> None:
        asked.append(url)
        raise OSError

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    run("health", "-q")
    assert asked == ["http://127.0.0.1:10913/readyz"]


@pytest.mark.parametrize("command", [("config", "check"), ("serve", "--check"), ("namesrv", "--check")])
def test_the_check_opens_certificates(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("REPUT_TLS__CERT", "/nope.pem")
    monkeypatch.setenv("REPUT_TLS__MODE", "required")
    with pytest.raises(CommandFailed, match=r"/nope\.pem: there is no such file.*from REPUT_TLS__CERT") as refused:
        CliRunner().invoke(root, command, catch_exceptions=False, standalone_mode=False)
    assert refused.value.code == ExitCode.USAGE


@pytest.mark.parametrize("command", [("config", "check"), ("serve", "--check"), ("namesrv", "--check")])
def test_the_check_needs_a_user_as_a_start_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    def refusal() -> str:
        with pytest.raises(CommandFailed) as refused:
            CliRunner().invoke(root, command, catch_exceptions=False, standalone_mode=False)
        assert refused.value.code == ExitCode.USAGE
        return str(refused.value)

    data_dir = tmp_path / "data"
    monkeypatch.setenv("REPUT_DATA_DIR", str(data_dir))
    monkeypatch.setenv("REPUT_ACCESS__ENABLED", "true")
    assert f"{NoUsers(data_dir / 'access' / 'users.json')} (from REPUT_ACCESS__ENABLED)" in refusal()
    monkeypatch.setenv("REPUT_ACCESS__GENERATE_ADMIN", "true")
    assert run(*command).exit_code == 0
    assert not data_dir.exists()
    users = tmp_path / "users.json"
    users.write_text("[]")
    users.chmod(0o600)
    monkeypatch.setenv("REPUT_ACCESS__FILE", str(users))
    assert f"{users} cannot be used: the file is not a table" in refusal()
