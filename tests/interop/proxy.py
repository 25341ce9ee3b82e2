"""A proxy in front of the broker, for RocketMQ's gRPC clients: Reput's, or RocketMQ's own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from interop import building
from interop.client import DEADLINE_S, ClientFailed
from support.broker_process import free_port

VERSION = "5.5.0"
_STARTS_MAX = 3

_SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_JVM = (
    "-Duser.home=.",
    "-Djava.io.tmpdir=.",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def command(jvm: Sequence[str] = _SMALL) -> list[str]:
    """What starts the proxy, before its arguments, built if need be; see `built_classpath` for its errors."""
    return ["java", *jvm, *_JVM, "-cp", building.java("proxy", VERSION), "org.apache.rocketmq.proxy.ProxyStartup"]


def signing_as(user: str, secret: str) -> dict[str, object]:
    """Settings with which the proxy signs all requests to the broker, whichever client they are for."""
    return {
        "enableAclRpcHookForClusterMode": True,
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": user, "secretKey": secret}),
    }


class Proxy:
    """A process that listens for gRPC clients.

    Args:
        command: starts it.
        home: an existing directory, where it runs.
        environment: its variables.
        port: for gRPC clients.
        starts_max: how often it is started if it ends.

    Raises:
        ClientFailed: it does not start.
    """

    def __init__(
        self, command: Sequence[str], home: Path, environment: Mapping[str, str], port: int, starts_max: int = 1
    ) -> None:
        self.address = f"127.0.0.1:{port}"
        self._log = home / "stderr"
        self._home = home
        self._command = command
        self._environment = environment
        self._starts_max = starts_max
        self._process = self._start()
        try:
            self._wait(port)
        except BaseException:
            self.kill()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command, cwd=self._home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )

    def _wait(self, port: int) -> None:
        ends_at = time.monotonic() + DEADLINE_S
        starts = 1
        while time.monotonic() < ends_at:
            if self._process.poll() is not None:
                if starts == self._starts_max:
                    raise ClientFailed(f"the proxy ended with {self._process.returncode}\n{self._tail()}")
                self._process = self._start()
                starts += 1
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return
            except OSError:
                time.sleep(0.1)
        raise ClientFailed(f"the proxy does not listen after {DEADLINE_S:.0f} s\n{self._tail()}")

    def wait(self) -> None:
        """Wait for the end of the process, and raise `ClientFailed` then."""
        status = self._process.wait()
        raise ClientFailed(f"the proxy ended with {status}\n{self._tail()}")

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


def reput_proxy(broker: str, home: Path, arguments: Sequence[str] = ()) -> Proxy:
    """Return a process of Reput's proxy in front of a broker; see `Proxy` for its errors."""
    home.mkdir(parents=True)
    port = free_port()
    started = [sys.executable, "-m", "reput_cli", "proxy", "--server", broker, "--port", str(port), *arguments]
    return Proxy(started, home, {**os.environ, "HOME": str(home)}, port)


def apache_proxy(
    broker: str,
    home: Path,
    settings: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    port: int | None = None,
    jvm: Sequence[str] = _SMALL,
) -> Proxy:
    """Return a process of RocketMQ's proxy in cluster mode; see `Proxy` for its errors.

    Args:
        broker: the address of its cluster's only broker, which serves as that of a name server.
        home: a new directory.
        settings: more of the proxy's configuration.
        environment: more variables of the process.
        port: for gRPC clients; a free one by default.
        jvm: options of the virtual machine.
    """
    (home / "conf").mkdir(parents=True, mode=0o700)
    port = port or free_port()
    configuration = home / "conf" / "rmq-proxy.json"
    configuration.write_text(
        json.dumps(
            {
                "proxyMode": "CLUSTER",
                "rocketMQClusterName": "DefaultCluster",
                "namesrvAddr": broker,
                "grpcServerPort": port,
                "remotingListenPort": free_port(),
                "localServeAddr": "127.0.0.1",
                **(settings or {}),
            }
        )
    )
    variables = {
        **os.environ,
        "HOME": str(home),
        "ROCKETMQ_HOME": str(home),
        "NAMESRV_ADDR": broker,
        **(environment or {}),
    }
    # It ends if its first request is not answered within 3 s, its own TLS handshake included.
    return Proxy([*command(jvm), "-pc", str(configuration)], home, variables, port, _STARTS_MAX)
