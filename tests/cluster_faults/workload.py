"""The producers, or a pull reader, of a run in a process of their own; what they do is that of the simulation.

`python workload.py produce|read NAME ADDRESSES HISTORY --seed N` works until SIGTERM. Producers then only answer checks
of transactions, until the second one.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.remove(str(Path(__file__).resolve().parent))

import trio

from histories import terms
from histories.history import Pulse, Recorder
from reput_protocol.codes import AckLevel
from simulation.workload import Load, Producers, Reader

_LEVELS = {AckLevel.REPLICATED: 6, AckLevel.FLUSHED: 2, AckLevel.PAGE_CACHE: 2}


async def _produce(arguments: argparse.Namespace, recorder: Recorder, chance: random.Random) -> None:
    levels = {AckLevel.FLUSHED: 1} if arguments.alone else _LEVELS
    load = Load(arguments.address, levels, next(iter(levels)), arguments.pause)
    producers = Producers(arguments.name, load, recorder.note, chance)
    async with trio.open_nursery() as nursery:

        async def listen() -> None:
            with trio.open_signal_receiver(signal.SIGTERM) as signals:
                async for _ in signals:
                    if producers.over.is_set():
                        producers.ended.set()
                    producers.over.set()

        nursery.start_soon(listen)
        await producers.run()
        nursery.cancel_scope.cancel()


async def _read(arguments: argparse.Namespace, recorder: Recorder, chance: random.Random) -> None:
    recorder.note("start")
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            for topic in terms.TOPICS:
                nursery.start_soon(Reader(arguments.address, topic, recorder.note, chance).run)
            async for _ in signals:
                break
            nursery.cancel_scope.cancel()
    recorder.note("end")


def main() -> None:
    """Work as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=("produce", "read"))
    for name in ("name", "address", "history"):
        parser.add_argument(name)
    parser.add_argument("--seed", required=True)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--pause", type=float, default=0.08, help="mean time between two puts of a producer")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s")
    recorder = Recorder(Path(arguments.history), arguments.name)
    Pulse(recorder)
    work = _produce if arguments.work == "produce" else _read
    trio.run(work, arguments, recorder, random.Random(arguments.seed))


if __name__ == "__main__":
    main()
