"""What closes a broker, and what its clients need then: TLS, or a user."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from interop.proxy import signing_as
from reput_client import TLS, Credentials
from support.tls_files import make_tls_files

ADMIN = Credentials("admin", "the-secret-of-the-administrator")


@dataclass(frozen=True, slots=True)
class Guard:
    """`broker`, `clients` and `proxy` are variables of these processes; RocketMQ's proxy has `proxy_settings` too, and
    Reput's `proxy_arguments` instead.

    The suite's own clients use `tls`, and `credentials`, which are the administrator's.
    """

    broker: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, str] = field(default_factory=dict)
    proxy: Mapping[str, str] = field(default_factory=dict)
    proxy_settings: Mapping[str, object] = field(default_factory=dict)
    proxy_arguments: tuple[str, ...] = ()
    tls: TLS | None = None
    credentials: Credentials | None = None


def none(_: Path) -> Guard:
    """No TLS and no users."""
    return Guard()


def tls(directory: Path) -> Guard:
    """TLS only, with certificates that clients are to check; of the proxy, too."""
    files = make_tls_files(directory)
    key = directory / "proxy-key.pem"
    key.write_bytes(
        load_pem_private_key(files.broker.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        )
    )
    java = {
        "JAVA_TOOL_OPTIONS": "-Dtls.enable=true -Dtls.test.mode.enable=false -Dtls.client.authServer=true "
        f"-Dtls.client.trustCertPath={files.ca}"
    }
    return Guard(
        broker={"REPUT_TLS__MODE": "required", "REPUT_TLS__HTTP_MODE": "off", "REPUT_TLS__CERT": str(files.broker)},
        clients={**java, "INTEROP_CA": str(files.ca), "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(files.ca)},
        proxy=java,
        proxy_settings={"tlsTestModeEnable": False, "tlsCertPath": str(files.broker), "tlsKeyPath": str(key)},
        proxy_arguments=(
            *("--tls-ca", str(files.ca)),
            *("--listen-tls-cert", str(files.broker), "--listen-tls-key", str(key)),
        ),
        tls=TLS(ca=str(files.ca)),
    )


def users(directory: Path) -> Guard:
    """Access control with a user `alice` for clients and `proxy` for the proxy.

    Both may use the topics and groups whose names checks have made; the proxy also has a topic of its own.
    """
    file = directory / "users.json"
    secrets = {name: directory / f"{name}.secret" for name in ("alice", "proxy")}
    for arguments in (
        *(("user", "create", name, "--generate", str(path)) for name, path in secrets.items()),
        *(("acl", "allow", name, "read,write", "topic:topic-*") for name in secrets),
        *(("acl", "allow", name, "read", "group:group-*") for name in secrets),
        ("acl", "allow", "proxy", "admin,read,write", "topic:DefaultHeartBeatSyncerTopic"),
        ("acl", "allow", "proxy", "describe", "topic:DefaultCluster", "topic:broker-a"),
        ("acl", "allow", "proxy", "read", "group:CID_DefaultHeartBeatSyncerTopic"),
    ):
        # In a process of its own, because checks run side by side, and this one's output is theirs.
        command = [sys.executable, "-m", "reput_cli", *arguments, "--file", str(file)]
        subprocess.run(command, check=True, capture_output=True)
    alice, proxy = (path.read_text().strip() for path in secrets.values())
    return Guard(
        broker={
            "REPUT_ACCESS__ENABLED": "true",
            "REPUT_ACCESS__FILE": str(file),
            "REPUT_ACCESS__ADMIN_SECRET": ADMIN.secret,
        },
        clients={"INTEROP_USER": "alice", "INTEROP_SECRET": alice},
        proxy_settings=signing_as("proxy", proxy),
        proxy_arguments=("--users", str(file)),
        credentials=ADMIN,
    )
