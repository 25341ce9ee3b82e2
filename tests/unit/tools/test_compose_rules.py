"""Rules for the compose file: the shipped one keeps them, and a broken one is named."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from compose_rules import MEMBERS, compose_problems, merged
from image_check import base_image
from reput_broker.access.control import user_file_of
from reput_broker.config.loading import load_config
from reput_broker.config.model import BrokerConfig
from reput_broker.name_server import DEFAULTS as NAME_SERVER_DEFAULTS
from reput_broker.name_server import check_options
from reput_cli.proxy import command as proxy
from reput_pipeline.jobs.archive import command
from reput_pipeline.spark.session import DEFAULTS, LOCAL_DEFAULTS

REPOSITORY = Path(__file__).resolve().parents[3]
COMPOSE = REPOSITORY / "docker-compose.yml"
WITH_TLS = REPOSITORY / "conf" / "docker-compose.tls.yml"


def test_the_shipped_file_keeps_every_promise() -> None:
    assert compose_problems(COMPOSE) == []
    assert compose_problems(COMPOSE, WITH_TLS) == []


def test_the_image_and_the_compose_file_advertise_nothing() -> None:
    """The address of a published port is another broker's elsewhere; clients went there in silence."""
    assert "REPUT_ADVERTISE" not in (REPOSITORY / "Dockerfile").read_text()
    service = yaml.safe_load(COMPOSE.read_text())["services"]["reput"]
    assert service["environment"]["REPUT_ADVERTISE"] == "${REPUT_ADVERTISE:-}"


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
        ("prom/prometheus:v3.5.0", "prom/prometheus", "prometheus: its image has no exact version"),
        ("prom/prometheus:v3.5.0", "prom/prometheus:v3", "prometheus: its image has no exact version"),
        ("networks: [engine]", "networks: [default, engine]", "network 'engine' is for etcd and the members"),
        ("internal: true", "internal: false", "network 'engine' is reached from this machine"),
        ("_ipv4: isolated", "_ipv4: nat", "network 'engine' is reached from this machine"),
        ("stop_grace_period", "stop_grace", "reput: unknown key 'stop_grace'"),
        ("  spark:", "  sparks:", "service 'spark' is missing"),
        ("profiles: [spark]", "profiles: [jobs]", "spark: its profiles are ['jobs'], not ['spark']"),
        ("target: spark", "target: sparks", "spark: the Dockerfile has no stage 'sparks'"),
        ("target: spark", "dockerfile: Other", "spark: unknown key 'dockerfile' of build"),
        ("context: .", "context: ..", "spark: it is built from .., not from the repository"),
        ("- archive-data:/archive", "- archive-data:/data", "spark: /archive is in no named volume"),
        ("profiles: [proxy]", "profiles: [grpc]", "proxy: its profiles are ['grpc'], not ['proxy']"),
        ('["/tmp:exec"]', '["/var/tmp"]', "spark: it has no tmpfs on /tmp"),
        ("  grafana:", "  graphs:", "service 'grafana' is missing"),
        ("profiles: [monitoring]", "profiles: [m]", "prometheus: its profiles are ['m'], not ['monitoring']"),
        (
            "  grafana:\n    <<: *hardened\n    profiles: [monitoring]",
            "  grafana:\n    <<: *hardened",
            "grafana: it waits for prometheus, which its profile does not start",
        ),
        ('"127.0.0.1:9090:9090"', '"127.0.0.1:3000:9090"', "127.0.0.1:3000 is published twice"),
        ("profiles: [cluster]", "profiles: [three]", "reput-0: its profiles are ['three'], not ['cluster']"),
        ("- reput-1-data:/", "- reput-1-data:/data", "reput-1: /var/lib/reput is in no named volume"),
        ("    namesrv:\n      condition", "    names:\n      condition", "reput-2: it does not wait until namesrv"),
    ],
)
def test_a_broken_promise_is_named(tmp_path: Path, kept: str, broken: str, problem: str) -> None:
    text = COMPOSE.read_text()
    assert kept in text
    for directory in ("prometheus", "grafana"):
        (tmp_path / "conf").mkdir(exist_ok=True)
        (tmp_path / "conf" / directory).symlink_to(REPOSITORY / "conf" / directory)
    (tmp_path / "Dockerfile").symlink_to(REPOSITORY / "Dockerfile")
    path = tmp_path / "docker-compose.yml"
    path.write_text(text.replace(kept, broken))
    assert any(problem in found for found in compose_problems(path))


def test_grafana_finds_its_dashboard_and_prometheus_the_broker() -> None:
    """The files that are mounted name paths, services and ports of the compose file."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    conf = REPOSITORY / "conf"
    mounts = dict(reversed(mount.removesuffix(":ro").split(":")) for mount in services["grafana"]["volumes"])
    provisioning = mounts["/etc/grafana/provisioning"]
    assert provisioning == "./conf/grafana/provisioning"
    (provider,) = yaml.safe_load((conf / "grafana/provisioning/dashboards/reput.yml").read_text())["providers"]
    assert mounts[provider["options"]["path"]] == "./conf/grafana/dashboards"
    sources = yaml.safe_load((conf / "grafana/provisioning/datasources/prometheus.yml").read_text())
    (source,) = sources["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
    assert "127.0.0.1:9090:9090" in services["prometheus"]["ports"]
    dashboard = json.loads((conf / "grafana/dashboards/reput.json").read_text())
    used = [panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel]
    assert used
    assert set(used) <= {source["uid"], "${datasource}"}

    assert "./conf/prometheus:/etc/prometheus:ro" in services["prometheus"]["volumes"]
    assert "--config.file=/etc/prometheus/prometheus.yml" in services["prometheus"]["command"]
    scraped = yaml.safe_load((conf / "prometheus/prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["reput:10913"]}]
    assert "127.0.0.1:10913:10913" in services["reput"]["ports"]
    (members,) = job["dns_sd_configs"]
    assert (tuple(members["names"]), members["port"]) == (MEMBERS, 10913)
    assert all(services[name]["ports"][0].endswith(":10913") for name in MEMBERS)
    assert all((conf / "prometheus" / name).is_file() for name in scraped["rule_files"])


def configurations(document: dict[str, Any]) -> dict[str, BrokerConfig]:
    """Return what each broker and name server of a compose file runs with: the image's file, and its variables."""
    found = {}
    for name, service in document["services"].items():
        verb = service.get("command", ["serve"])[0]
        if service.get("image") != "reput:0.1.0" or verb not in ("serve", "namesrv"):
            continue
        environment = {key: text for key, text in service["environment"].items() if "$" not in text}
        if verb == "namesrv":
            found[name] = check_options(load_config(None, environment, {}, NAME_SERVER_DEFAULTS))
        else:
            found[name] = load_config(REPOSITORY / "conf" / "container.toml", environment)
    return found


def test_with_tls_every_port_needs_tls_and_a_user(tmp_path: Path) -> None:
    plain, override = (yaml.safe_load(path.read_text()) for path in (COMPOSE, WITH_TLS))
    assert {config.access.enabled for config in configurations(plain).values()} == {False}

    secret = "REPUT_ACCESS__ADMIN_SECRET_FILE"
    document = merged(plain, override)
    for name in ("reput", "namesrv", *MEMBERS):
        variables = document["services"][name]["environment"]
        assert variables[secret] == variables["REPUT_SECRET_FILE"]
        assert Path(variables[secret]).parent == Path("/etc/reput/secure")
        variables[secret] = str(tmp_path / "admin.secret")
    (tmp_path / "admin.secret").write_text("0123456789abcdef\n")
    found = configurations(document)
    assert sorted(found) == sorted(("reput", "namesrv", *MEMBERS))
    for name, config in found.items():
        assert (config.access.enabled, config.allow_insecure) == (True, False), name
        assert config.access.credentials() is not None, name
        assert (config.tls.mode, config.tls.effective_http_mode) == ("required", "required"), name
        assert config.tls.connect == (name != "namesrv")
        files = {config.tls.cert, config.tls.key, config.tls.ca} - {""}
        assert {str(Path(path).parent) for path in files} == {"/etc/reput/secure"}
        assert "./secure:/etc/reput/secure:ro" in document["services"][name]["volumes"]


def test_grafana_has_no_account_with_a_known_password() -> None:
    plain, override = (yaml.safe_load(path.read_text()) for path in (COMPOSE, WITH_TLS))
    none = {"GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true", "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer"}
    assert none.items() <= plain["services"]["grafana"]["environment"].items()
    own = {"GF_AUTH_ANONYMOUS_ENABLED": "false", "GF_SECURITY_ADMIN_PASSWORD__FILE": "/etc/reput/secure/grafana.secret"}
    assert own.items() <= merged(plain, override)["services"]["grafana"]["environment"].items()


def proxy_options(services: dict[str, Any]) -> dict[str, Any]:
    """Return what the proxy of a compose file is started with; a wrong option raises."""
    verb, *arguments = services["proxy"]["command"]
    assert verb == "proxy"
    with proxy.make_context("proxy", arguments) as context:
        return context.params


def test_the_proxy_is_ours_and_its_health_is_that_of_its_http_port() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    given = proxy_options(services)
    assert (given["host"], given["port"], given["users"]) == ("0.0.0.0", 8081, None)
    assert services["proxy"]["image"] == services["reput"]["image"]
    assert services["proxy"]["healthcheck"]["test"][-1] == f"http://127.0.0.1:{given['http_port']}/readyz"


def test_with_tls_clients_of_the_proxy_use_tls_and_sign_as_users_of_the_broker() -> None:
    plain, override = (yaml.safe_load(path.read_text()) for path in (COMPOSE, WITH_TLS))
    services = merged(plain, override)["services"]
    given, before = proxy_options(services), proxy_options(plain["services"])
    added = {"tls_ca", "listen_tls_cert", "listen_tls_key", "users"}
    assert {name for name in given if given[name] != before[name]} == added
    [volume] = [each for each in services["proxy"]["volumes"] if each.startswith("reput-data:")]
    _, directory, mode = volume.split(":")
    broker = load_config(REPOSITORY / "conf" / "container.toml", {})
    assert mode == "ro"
    assert str(given["users"]).replace(directory, str(broker.data_dir), 1) == str(user_file_of(broker).path)


def test_with_tls_the_job_and_prometheus_only_add_what_they_need() -> None:
    plain, override = (yaml.safe_load(path.read_text())["services"] for path in (COMPOSE, WITH_TLS))
    added = [word for word in override["spark"]["command"] if word not in plain["spark"]["command"]]
    assert added == ["--option=tlsCa=/etc/reput/secure/ca.pem"]
    assert [word for word in plain["spark"]["command"] if word not in override["spark"]["command"]] == []
    assert command.make_context("archive", override["spark"]["command"][2:])

    assert override["spark"]["environment"]["REPUT_USER"] == "archive", "a job needs no administrator"
    config, *others = override["prometheus"]["command"]
    assert others == plain["prometheus"]["command"][1:]
    conf = REPOSITORY / "conf" / "prometheus"
    scraped = yaml.safe_load((conf / config.rpartition("/")[2]).read_text())
    (job,) = scraped["scrape_configs"]
    assert job.pop("scheme") == "https"
    assert job.pop("tls_config") == {"ca_file": "/etc/reput/secure/ca.pem", "server_name": "reput"}
    password = {"username": "metrics", "password_file": "/etc/reput/secure/metrics.secret"}
    assert job.pop("basic_auth") == password
    assert scraped == yaml.safe_load((conf / "prometheus.yml").read_text())


@pytest.mark.parametrize(
    ("changes", "problem"), [({"reputs": {}}, "no service 'reputs'"), ({"reput": {"ports": []}}, "ports is not one of")]
)
def test_what_compose_merges_differently_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        merged({"services": {"reput": {}}}, {"services": changes})


def test_the_stages_of_the_image_start_from_one_base() -> None:
    assert base_image().startswith("python:3.11.")


def test_the_job_of_the_compose_file_is_one_that_there_is() -> None:
    service = yaml.safe_load(COMPOSE.read_text())["services"]["spark"]
    name, job, *arguments = service["command"]
    assert (name, job) == ("pipeline", "archive")
    context = command.make_context("archive", [*arguments])
    assert isinstance(context, click.Context)
    assert context.params["server"] == "reput:10911"
    assert f"archive-data:{context.params['target']}" in service["volumes"]
    assert context.params["follow"]


SOCKETS = "spark.python.unix.domain.socket.enabled"


def test_the_settings_for_spark_are_those_of_our_sessions() -> None:
    text = (REPOSITORY / "conf" / "spark-defaults.conf").read_text()
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    assert all(len(line) == 2 for line in lines)
    settings = dict(lines)
    assert len(settings) == len(lines)
    assert settings["spark.sql.session.timeZone"] == DEFAULTS["spark.sql.session.timeZone"]
    assert settings[SOCKETS] == LOCAL_DEFAULTS[SOCKETS] == "true"
    # Whether a page with the progress is wanted is for each place to say.
    assert not [name for name in settings if name.startswith("spark.ui.")]


def test_what_the_dockerfile_copies_and_what_it_builds_with_reaches_the_builder() -> None:
    """What is missing in .dockerignore is missed only when an image is built."""
    lines = (REPOSITORY / "Dockerfile").read_text().splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from=" not in line]
    sent = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    assert {source for sources in copied for source in sources} == sent
    assert all((REPOSITORY / source).exists() for source in sent)
    assert "client" in sent  # with its build hook
