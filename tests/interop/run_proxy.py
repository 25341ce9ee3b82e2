"""`python tests/interop/run_proxy.py`: RocketMQ's proxy in front of a broker, for gRPC clients, until Ctrl-C.

Maven fetches the proxy once. With --user it signs its requests as that user.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

from interop.client import ClientFailed
from interop.proxy import VERSION, apache_proxy, signing_as
from support.maven import Unreachable


def main() -> int:
    """Parse the arguments, start, wait."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:10911", help="a broker or name server (%(default)s)")
    parser.add_argument("--port", type=int, default=8081, help="for gRPC clients (%(default)s)")
    parser.add_argument("--cluster", default="DefaultCluster", help="the broker's (%(default)s)")
    parser.add_argument("--user", help="the proxy's")
    parser.add_argument("--secret-file", type=Path, help="with the user's secret")
    arguments = parser.parse_args()
    if (arguments.user is None) != (arguments.secret_file is None):
        parser.error("--user and --secret-file go together")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    settings: dict[str, object] = {"rocketMQClusterName": arguments.cluster}
    try:
        if arguments.user is not None:
            settings |= signing_as(arguments.user, arguments.secret_file.read_text().strip())
        with tempfile.TemporaryDirectory(prefix="reput-proxy-") as directory:
            proxy = apache_proxy(arguments.server, Path(directory) / "proxy", settings, port=arguments.port)
            try:
                print(f"RocketMQ's proxy {VERSION}: gRPC clients connect to {proxy.address}", flush=True)
                print(
                    f"warning: every client that reaches port {arguments.port} of this machine has the rights of "
                    f"{arguments.user or 'any client of the broker'}",
                    file=sys.stderr,
                    flush=True,
                )
                proxy.wait()
            finally:
                proxy.kill()
    except KeyboardInterrupt:
        return 0
    except (ClientFailed, Unreachable, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
