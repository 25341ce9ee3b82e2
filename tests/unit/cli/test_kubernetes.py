"""The Kubernetes manifests: valid, consistent with the image and the broker, and their commands work."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from reput_broker.config.loading import load_config
from support.broker_process import BrokerProcess
from support.command import reput

ROOT = Path(__file__).parents[3]
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "conf" / "kubernetes" / "reput.yaml").read_text(encoding="utf-8"))
)
TLS = yaml.safe_load((ROOT / "conf" / "kubernetes" / "tls.yaml").read_text(encoding="utf-8"))
POD = next(each for each in MANIFESTS if each["kind"] == "StatefulSet")["spec"]["template"]["spec"]
BROKER = POD["containers"][0]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_the_schemas_of_kubernetes_accept_each_manifest(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_schema_refuses_a_wrong_field() -> None:
    service = {**MANIFESTS[0], "spec": {**MANIFESTS[0]["spec"], "selectors": {}}}
    with pytest.raises(kubernetes_validate.ValidationError, match="selectors"):
        kubernetes_validate.validate(service, "1.33", strict=True)


def test_manifests_select_the_pod_and_name_its_ports() -> None:
    by_name = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in MANIFESTS}
    pods = by_name["StatefulSet", "reput"]
    labels = pods["template"]["metadata"]["labels"]
    assert ("Service", pods["serviceName"]) in by_name
    assert pods["selector"] == by_name["PodDisruptionBudget", "reput"]["selector"] == {"matchLabels": labels}
    ports = {port["name"]: port["containerPort"] for port in BROKER["ports"]}
    for kind, name in by_name:
        if kind == "Service":
            assert by_name[kind, name]["selector"] == labels
            assert all(ports[port["targetPort"]] == port["port"] for port in by_name[kind, name]["ports"])


def patched(target: Any, patch: Any) -> Any:
    """Return what kustomize makes of a manifest and a strategic merge patch; new entries of a list are its last."""
    if isinstance(target, dict):
        return {
            **target,
            **{key: patched(target[key], value) if key in target else value for key, value in patch.items()},
        }
    if isinstance(target, list) and isinstance(patch[0], dict):
        key = "mountPath" if "mountPath" in patch[0] else "name"
        by_name = {entry[key]: entry for entry in target}
        for entry in patch:
            by_name[entry[key]] = patched(by_name[entry[key]], entry) if entry[key] in by_name else entry
        return [*by_name.values()]
    return patch


def test_the_patch_adds_tls_to_the_pod() -> None:
    plain = next(each for each in MANIFESTS if each["kind"] == "StatefulSet")
    assert all(TLS[key] == plain[key] for key in ("apiVersion", "kind"))
    assert TLS["metadata"]["name"] == plain["metadata"]["name"]
    manifest = patched(plain, TLS)
    for version in ("1.29", "1.33"):
        kubernetes_validate.validate(manifest, version, strict=True)
    pod = manifest["spec"]["template"]["spec"]
    (broker,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert broker[probe] == {**BROKER[probe], "httpGet": {**BROKER[probe]["httpGet"], "scheme": "HTTPS"}}
    (mount,) = [each for each in broker["volumeMounts"] if each not in BROKER["volumeMounts"]]
    (volume,) = [each for each in pod["volumes"] if each not in POD["volumes"]]
    assert mount["name"] == volume["name"]
    # The pod's fsGroup owns the files, and no other user may read them.
    assert volume["secret"]["defaultMode"] == 0o440
    added = {each["name"]: each["value"] for each in broker["env"] if each not in BROKER["env"]}
    config = load_config(ROOT / "conf" / "container.toml", added)
    assert (config.tls.mode, config.access.enabled) == ("required", True)
    command = broker["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:3] == BROKER["lifecycle"]["preStop"]["exec"]["command"]
    assert command[3] == "--tls-ca"
    files = (config.tls.cert, config.tls.key, command[4])
    assert {str(Path(path).parent) for path in files} == {mount["mountPath"]}
    assert {Path(path).name for path in files} == {"tls.crt", "tls.key", "ca.crt"}


def test_the_pod_fits_the_image() -> None:
    given = {each["name"]: each["value"] for each in BROKER["env"] if "value" in each}
    config = load_config(
        ROOT / "conf" / "container.toml", {**given, "REPUT_ADVERTISE": "reput-0.reput-pods.x.svc:10911"}, {}
    )
    ports = {port["name"]: port["containerPort"] for port in BROKER["ports"]}
    assert ports == {
        "broker": config.port,
        "names": config.port_to_open("name_port"),
        "http": 10913,
        "grpc": config.proxy_port,
    }
    assert BROKER["volumeMounts"][0]["mountPath"] == str(config.data_dir)
    assert POD["terminationGracePeriodSeconds"] > config.shutdown_grace + 10
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    user = POD["securityContext"]
    assert f"USER {user['runAsUser']}:{user['runAsGroup']}" in image
    assert str(BROKER["args"]).replace("'", '"') == '["serve", "-c", "/etc/reput/broker.toml"]'
    assert 'CMD ["serve", "-c", "/etc/reput/broker.toml"]' in image


def test_probes_and_the_stop_command_work_with_a_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:

        def answers(probe: str) -> int:
            path = BROKER[probe]["httpGet"]["path"]
            # The kubelet connects to the pod's address, and names that.
            request = urllib.request.Request(
                f"http://127.0.0.1:{broker.http_port}{path}", headers={"Host": "10.1.2.3:10913"}
            )
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        probes = ("startupProbe", "readinessProbe", "livenessProbe")
        assert [answers(probe) for probe in probes] == [200, 200, 200]
        command, *arguments = BROKER["lifecycle"]["preStop"]["exec"]["command"]
        assert command == "reput"
        assert reput(*arguments, server=broker.address).returncode == 0
        assert answers("readinessProbe") == 503
        assert answers("livenessProbe") == 200
