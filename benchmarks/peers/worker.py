"""A client process: reads a job as a line of JSON, writes `ready`, waits for `go`, and answers with a line of JSON.

python -m peers.worker MODULE CLASS
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import resource
import sys
import time

from peers.bodies import Bodies, Tally
from peers.drivers.base import Driver
from peers.job import Job, Result, job_of_line


def main() -> None:
    """Serve until the input ends."""
    logging.disable()  # errors are raised
    module, name = sys.argv[1:3]
    driver_class: type[Driver] = getattr(importlib.import_module(f"peers.drivers.{module}"), name)
    for line in sys.stdin:
        job = job_of_line(line)
        try:
            result = asyncio.run(_run(driver_class(job), job))
        except Exception as error:  # any error of a client is reported, and the run does not count
            result = Result(fault=f"{type(error).__name__}: {error}")
        print(result.as_line(), flush=True)


async def _run(driver: Driver, job: Job) -> Result:
    if job.role == "create":
        await driver.create()
    elif job.role == "drop":
        await driver.drop()
    elif job.role == "produce":
        return await _produce(driver, job)
    else:
        return await _consume(driver, job)
    return Result()


async def _produce(driver: Driver, job: Job) -> Result:
    bodies = Bodies(job.size, job.first, job.seconds)
    await driver.open_producer()
    _wait_for_go()
    result = Result()
    cpu_s, started_at = _cpu_s(), time.perf_counter()
    bodies.start()
    if job.kind == "batched":
        await driver.batched(bodies)
    elif job.kind == "singles":
        await driver.singles(bodies)
    elif job.kind == "windowed":
        result.latencies_us = await driver.windowed(bodies, job.in_flight)
    else:
        await driver.paced(bodies, job.rate)
    result.seconds = time.perf_counter() - started_at
    result.cpu_s = _cpu_s() - cpu_s
    result.messages = bodies.made
    await driver.close_producer()
    return result


async def _consume(driver: Driver, job: Job) -> Result:
    tally = Tally(job.size, job.messages, timed=job.role == "tail")
    cpu_s, started_at = _cpu_s(), time.perf_counter()

    def ready() -> None:
        nonlocal cpu_s, started_at
        if job.role == "tail":
            _say_ready()
        cpu_s, started_at = _cpu_s(), time.perf_counter()

    if job.role == "tail":
        await driver.tail(tally, ready)
    else:
        _wait_for_go()
        ready()
        if not job.columns:
            await driver.consume(tally)
        elif not await driver.consume_columns(tally):
            return Result(fault="has no columns")
    seconds, used_s = time.perf_counter() - started_at, _cpu_s() - cpu_s
    return Result(tally.count, seconds, used_s, tally.latencies_us, tally.fault())


def _say_ready() -> None:
    gc.collect()
    print("ready", flush=True)


def _wait_for_go() -> None:
    _say_ready()
    sys.stdin.readline()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
