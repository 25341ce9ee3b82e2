"""A real API server of Kubernetes, with a service account that may do what the Helm chart permits brokers."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from reput_broker.ha.election.kubernetes import SERVICE_ACCOUNT
from support.broker_process import free_port

PROGRAM = os.environ.get("KUBE_APISERVER")
"""The path of a kube-apiserver; with it, groups elect their masters by Leases instead of etcd."""
_ADMIN = "administrator-of-the-tests"
_READY_S = 60.0
_NAMES = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "reput"}}


class Kubernetes:
    """An API server in front of a running etcd; needs root, since a pod's token has one place.

    Args:
        path: for its certificates and log.
        etcd: the URL of etcd.
    """

    def __init__(self, path: Path, etcd: str) -> None:
        assert PROGRAM is not None
        self._port = free_port()
        self._certificates = path / "kubernetes"
        self._certificates.mkdir()
        key = rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        accounts = self._certificates / "accounts.key"
        accounts.write_bytes(key)
        tokens = self._certificates / "tokens.csv"
        tokens.write_text(f'{_ADMIN},admin,1,"system:masters"\n')
        options = {
            "etcd-servers": etcd,
            "secure-port": self._port,
            "bind-address": "127.0.0.1",
            "cert-dir": self._certificates,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": accounts,
            "service-account-signing-key-file": accounts,
            "token-auth-file": tokens,
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.0.0.0/24",
        }
        self._log = path / "kubernetes.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [PROGRAM, *(f"--{name}={value}" for name, value in options.items())], stdout=log, stderr=log
            )
        self._permit()

    @property
    def variables(self) -> dict[str, str]:
        """What a pod of it finds in its environment, and the option that elects by a Lease."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self._port),
            "REPUT_ELECTION__KUBERNETES_NAMESPACE": "default",
        }

    def stop(self) -> None:
        """End it, and take the token away."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(SERVICE_ACCOUNT, ignore_errors=True)

    def leases(self) -> list[dict[str, Any]]:
        """Return the Leases of the namespace."""
        answer = self._ask("/apis/coordination.k8s.io/v1/namespaces/default/leases")
        return list(answer["items"])

    def _permit(self) -> None:
        """Make the account with its rights, and put its token where a pod has it."""
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                self._ask("/api/v1/namespaces/default")
                break
            except OSError:
                assert self._process.poll() is None, self._log.read_text()[-4000:]
                assert time.monotonic() < deadline, self._log.read_text()[-4000:]
                time.sleep(0.2)
        account = "/api/v1/namespaces/default/serviceaccounts"
        roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        rule = {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get", "watch", "create", "update"],
        }
        subject = {"kind": "ServiceAccount", "name": "reput", "namespace": "default"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reput"}
        self._ask(account, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reput"}})
        self._ask(f"{roles}/roles", {**_NAMES, "kind": "Role", "rules": [rule]})
        self._ask(f"{roles}/rolebindings", {**_NAMES, "kind": "RoleBinding", "subjects": [subject], "roleRef": role})
        wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self._ask(f"{account}/reput/token", wish)["status"]["token"]
        SERVICE_ACCOUNT.mkdir(parents=True, exist_ok=True)
        (SERVICE_ACCOUNT / "token").write_text(token)
        shutil.copy(self._certificates / "apiserver.crt", SERVICE_ACCOUNT / "ca.crt")

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(
            f"https://127.0.0.1:{self._port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {_ADMIN}", "Content-Type": "application/json"},
        )
        certificate = self._certificates / "apiserver.crt"
        context = ssl.create_default_context(cafile=str(certificate)) if certificate.exists() else None
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            found: dict[str, Any] = json.load(answer)
        return found
