"""A trio echo server: the cost of the same frames without a broker, the baseline of every ratio."""

from __future__ import annotations

import sys

import trio


async def _echo(stream: trio.SocketStream) -> None:
    async with stream:
        async for data in stream:
            await stream.send_all(data)


async def _serve() -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print(listeners[0].socket.getsockname()[1], flush=True)
    await trio.serve_listeners(_echo, listeners)


if __name__ == "__main__":
    try:
        trio.run(_serve)
    except KeyboardInterrupt:
        sys.exit(0)
