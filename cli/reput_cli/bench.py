"""`reput bench ...`: measure a broker from one or more client processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import click

from reput_cli.bench_clients import (
    BenchPlan,
    ClientResult,
    Payloads,
    run_consumer,
    run_producer,
    run_subscriber,
    share_progress,
    summarize,
    write_csv,
)
from reput_cli.completion import TOPIC
from reput_cli.failures import CommandFailed
from reput_cli.options import DURATION, SIZE, Settings, added, shared_options
from reput_cli.output import Printer
from reput_protocol.exit_codes import ExitCode
from reput_protocol.printable import counted

_Work = tuple[Callable[[BenchPlan, int], ClientResult], BenchPlan, int]
_DEFAULT_TOPIC = "reput-bench"
_SPAWN = multiprocessing.get_context("spawn")


@click.group()
def command() -> None:
    """Measure producing, consuming, and the latency from a producer to a waiting consumer.

    Figures depend on the machine and on --ack: compare ratios within one run, not figures of different runs.
    """


_bench_options = added(
    shared_options,
    click.option(
        "--topic", type=TOPIC, default=_DEFAULT_TOPIC, show_default=True, help="Created with 4 queues if missing."
    ),
    click.option(
        "--msgs", type=click.IntRange(min=1), default=100_000, show_default=True, help="Total of all clients."
    ),
    click.option("--size", type=SIZE, default="1KiB", show_default=True, help="Size of a body."),
    click.option("--clients", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes."),
    click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Append a row to this file."),
)
_produce_options = added(
    click.option(
        "--ack", type=click.Choice(["page_cache", "flushed", "replicated"]), default="flushed", show_default=True
    ),
    click.option(
        "--inflight", type=click.IntRange(min=1), default=1, show_default=True, help="Sends without a response yet."
    ),
    click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Messages per send."),
    click.option("--many", is_flag=True, help="Send bodies with send_many, in blocks of --batch."),
    click.option(
        "--rate",
        type=click.FloatRange(min=0, min_open=True),
        help="Messages per second and client; latency counts from the intended send time.",
    ),
    click.option("--duration", type=DURATION, help="Stop after this time, even before --msgs."),
    click.option(
        "--warmup",
        type=click.IntRange(min=0),
        default=1_000,
        show_default=True,
        help="Messages sent before the measurement.",
    ),
)


@command.command()
@_produce_options
@_bench_options
def produce(settings: Settings, clients: int, csv_path: Path | None, **knobs: Any) -> int:
    """Send messages: one by one, pipelined (--inflight), in blocks (--batch), or as bodies (--many)."""
    plan = _plan(settings, clients, **knobs)
    progress = _counter()
    with Printer(settings).running("producing", _share(progress, plan, clients)):
        results = _gather([(run_producer, plan, client) for client in range(clients)], progress)
    _report(settings, csv_path, "produce", results, plan, clients)
    return ExitCode.DONE


@command.command()
@click.option("--verify", is_flag=True, help="Check that `bench produce` made every body.")
@_bench_options
def consume(settings: Settings, clients: int, csv_path: Path | None, verify: bool, **knobs: Any) -> int:
    """Read the body and tag of every message in the topic, from the first on."""
    plan = replace(_plan(settings, 1, **knobs), verify=verify)
    parts = [plan.queues[client::clients] for client in range(min(clients, len(plan.queues)))]
    plans = [replace(plan, queues=part, messages=plan.messages // len(parts)) for part in parts]
    progress = _counter()
    with Printer(settings).running("consuming", _share(progress, plan, 1)):
        results = _gather([(run_consumer, part, client) for client, part in enumerate(plans)], progress)
    _report(settings, csv_path, "consume", results, plan, len(parts))
    read, errors = sum(result.messages for result in results), sum(result.errors for result in results)
    if errors:
        raise CommandFailed(f"{errors} of {read} bodies are not what was produced", code=ExitCode.DAMAGE)
    if read == 0:
        raise CommandFailed(f"topic {plan.topic} is empty", remedy="reput bench produce", code=ExitCode.NOT_FOUND)
    return ExitCode.DONE


@command.command()
@_produce_options
@_bench_options
def pubsub(settings: Settings, clients: int, csv_path: Path | None, **knobs: Any) -> int:
    """Produce while a consumer process waits at each queue. Latency is from making a body to receiving it."""
    plan = _plan(settings, clients, **knobs)
    subscribers = [(run_subscriber, plan, number) for number in range(len(plan.queues))]
    producers = [(run_producer, plan, number) for number in range(clients)]
    progress = _counter()
    with (
        Printer(settings).running("producing and consuming", _share(progress, plan, clients)),
        _pool(len(subscribers) + clients, progress) as pool,
    ):
        waiting = _submit(pool, subscribers)
        time.sleep(1.0)  # until the subscribers wait at the end of the queues
        sending = _submit(pool, producers)
        sent, received = _results(sending), _results(waiting)
    _report(settings, csv_path, "pubsub produce", sent, plan, clients)
    _report(settings, csv_path, "pubsub consume", received, plan, len(plan.queues))
    lost = sum(r.messages for r in sent) + clients * plan.warmup - sum(r.messages for r in received)
    if lost > 0:
        raise CommandFailed(f"{counted(lost, 'message')} did not arrive", code=ExitCode.PARTIAL)
    return ExitCode.DONE


def _plan(settings: Settings, clients: int, *, topic: str, msgs: int, size: int, **knobs: Any) -> BenchPlan:
    try:
        Payloads(size)
    except ValueError as error:
        raise CommandFailed(str(error), code=ExitCode.USAGE) from error
    with settings.admin() as admin:
        admin.ensure_topic(topic, queues=4)
        queues = admin.topic_config(topic).read_queue_nums
    knobs = {"in_flight": knobs.pop("inflight", 1), "duration_s": knobs.pop("duration", None), **knobs}
    return BenchPlan(
        settings.server, topic, max(1, msgs // clients), size, queues=tuple(range(queues)), tls=settings.tls, **knobs
    )


def _counter() -> Synchronized[int]:
    """Return a count that client processes can share."""
    counter: Synchronized[int] = _SPAWN.Value("q", 0)
    return counter


def _share(progress: Synchronized[int], plan: BenchPlan, clients: int) -> Callable[[], float]:
    """Return what tells which part of the messages, the warm-up included, or of the time is done."""
    started_at = time.monotonic()
    total = (plan.messages + plan.warmup) * clients

    def share() -> float:
        of_time = 0.0 if plan.duration_s is None else (time.monotonic() - started_at) / plan.duration_s
        return max(progress.value / total, of_time)

    return share


def _gather(works: Sequence[_Work], progress: Synchronized[int]) -> list[ClientResult]:
    if len(works) == 1:
        work, plan, client = works[0]
        share_progress(progress)
        return [work(plan, client)]
    with _pool(len(works), progress) as pool:
        return _results(_submit(pool, works))


def _submit(pool: ProcessPoolExecutor, works: Sequence[_Work]) -> list[Future[ClientResult]]:
    return [pool.submit(work, plan, number) for work, plan, number in works]


def _results(futures: list[Future[ClientResult]]) -> list[ClientResult]:
    return [future.result() for future in futures]


def _pool(size: int, progress: Synchronized[int]) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(size, mp_context=_SPAWN, initializer=share_progress, initargs=(progress,))


def _report(
    settings: Settings, csv_path: Path | None, name: str, results: list[ClientResult], plan: BenchPlan, clients: int
) -> None:
    facts: dict[str, Any] = {"size_bytes": plan.size, "clients": clients}
    if "consume" not in name:
        facts |= {"ack": plan.ack, "in_flight": plan.in_flight, "batch": plan.batch, "many": plan.many}
    row = summarize(name, results, facts)
    Printer(settings).fields(row)
    if csv_path is not None:
        write_csv(csv_path, row)
