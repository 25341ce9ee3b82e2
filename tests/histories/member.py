"""A member of a group in its own process, which records everything that happens to it.

`python member.py NAME ADDRESS GROUP HISTORY [--face trio|asyncio|blocking] [--way run|take] [--concurrency N]
[--bug NAME]` consumes until SIGTERM. What its handlers do is written in the messages (see `terms.Body`).
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

import anyio

import reput_client.blocking
from histories import instruments, planted
from histories.consuming import JOIN_AGAIN_S, LOOK_S, Member
from histories.history import Pulse, Recorder
from reput_client.errors import ConnectFailed, RequestTimeout


async def _until_terminated() -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            return


class _BlockingMember(Member):
    def run_blocking(self) -> None:
        while True:
            try:
                self._consume_blocking()
                return
            except (ConnectFailed, RequestTimeout) as error:
                self.note("unconnected", error=str(error))
                time.sleep(JOIN_AGAIN_S)

    def _consume_blocking(self) -> None:
        with reput_client.blocking.Consumer(self.address, **self.options) as consumer:
            self.note("start", group=self.group)
            ending = threading.Event()

            def leave(*_: object) -> None:
                self.note("leaving", group=self.group)
                consumer.stop()

            signal.signal(signal.SIGTERM, leave)

            def watch() -> None:
                while not ending.wait(LOOK_S):
                    self.look(consumer)

            watcher = threading.Thread(target=watch)
            watcher.start()

            def handle(message: Any) -> None:
                facts = self.begin(message)
                time.sleep(self.pause_s(facts))
                self.finish(facts)

            consumer.run(handle, concurrency=self.concurrency)
            ending.set()
            watcher.join()
        self.note("end", group=self.group)


def main() -> None:
    """Consume as the command line says."""
    parser = argparse.ArgumentParser()
    for name in ("name", "address", "group", "history"):
        parser.add_argument(name)
    parser.add_argument("--face", default="trio", choices=("trio", "asyncio", "blocking"))
    parser.add_argument("--way", default="run", choices=("run", "take"))
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--hold", type=float, default=0.002, help="how long a handler takes")
    parser.add_argument("--bug", choices=[*planted.BUGS])
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until it is a member, which leaves in order
    recorder = Recorder(Path(arguments.history), arguments.name)
    if arguments.bug:
        planted.BUGS[arguments.bug].in_member()
    instruments.install(recorder, arguments.group)
    instruments.shorten_lock_times()
    Pulse(recorder)
    member = _BlockingMember(
        arguments.address,
        arguments.group,
        recorder.note,
        way=arguments.way,
        concurrency=arguments.concurrency,
        hold_s=arguments.hold,
    )
    if arguments.face == "blocking":
        member.run_blocking()
    else:
        anyio.run(member.run, _until_terminated, backend=arguments.face)


if __name__ == "__main__":
    main()
