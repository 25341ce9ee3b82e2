"""RocketMQ's own proxy in front of the broker, for its gRPC clients."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from interop import building
from interop.client import DEADLINE_S, ClientFailed
from support.broker_process import free_port

VERSION = "5.3.3"
_STARTS_MAX = 3

_JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Duser.home=.",
    "-Djava.io.tmpdir=.",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def command() -> list[str]:
    """What starts the proxy, before its arguments, built if need be; see `built_classpath` for its errors."""
    return ["java", *_JVM, "-cp", building.java("proxy", VERSION), "org.apache.rocketmq.proxy.ProxyStartup"]


def signing_as(user: str, secret: str) -> dict[str, object]:
    """Settings with which the proxy signs all requests to the broker, whichever client they are for."""
    return {
        "enableAclRpcHookForClusterMode": True,
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": user, "secretKey": secret}),
    }


class Proxy:
    """A process of the proxy in cluster mode, whose cluster is one broker of Reput.

    Args:
        broker: the broker's address, which serves as that of a name server.
        home: a new directory.
        settings: more of the proxy's configuration.
        environment: more variables of the process.
        port: for gRPC clients; a free one by default.

    Raises:
        ClientFailed: it does not start.
    """

    def __init__(
        self,
        broker: str,
        home: Path,
        settings: Mapping[str, object] | None = None,
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        (home / "conf").mkdir(parents=True, mode=0o700)
        port = port or free_port()
        self.address = f"127.0.0.1:{port}"
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
        self._log = home / "stderr"
        self._home = home
        self._command = [*command(), "-pc", str(configuration)]
        self._environment = {
            **os.environ,
            "HOME": str(home),
            "ROCKETMQ_HOME": str(home),
            "NAMESRV_ADDR": broker,
            **(environment or {}),
        }
        self._process = self._start()
        try:
            self._wait(port)
        except BaseException:
            self.kill()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                cwd=self._home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
            )

    def _wait(self, port: int) -> None:
        ends_at = time.monotonic() + DEADLINE_S
        starts = 1
        while time.monotonic() < ends_at:
            if self._process.poll() is not None:
                if starts == _STARTS_MAX:
                    raise ClientFailed(f"the proxy ended with {self._process.returncode}\n{self._tail()}")
                # It ends if its first request is not answered within 3 s, its own TLS handshake included.
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

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
