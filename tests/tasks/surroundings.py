"""Celery's gevent pool and Flower on Reput; both are installed from the package index for the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from support.broker_process import free_port
from support.waiting import wait_until

_PACKAGES: Final = (*("gevent", "greenlet", "zope.event", "zope.interface"), *("flower", "tornado", "humanize", "pytz"))
_SENDER: Final = """
import sys
from celery_app import app, mark
results = [mark.delay(str(number), float(sys.argv[1])) for number in range(20)]
for each in results:
    each.get(timeout=60)
"""


def report(url: str, place: Path) -> bool:
    """Try both, and print what works; return whether anything failed."""
    packages = place / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages)]
    subprocess.run([*pip, *_PACKAGES], check=True)
    environ = {
        **os.environ,
        "REPUT_URL": url,
        "MARKS": str(place / "marks"),
        "PYTHONPATH": f"{Path(__file__).parent}:{packages}",
        "FLOWER_UNAUTHENTICATED_API": "true",
    }
    failed = False
    print("\nCelery's surroundings on Reput")
    for what, worked in (_with_gevent(environ, place), *_with_flower(environ, place)):
        failed |= not worked
        print(f"  {'works' if worked else 'FAILS'}: {what}")
    return failed


def _with_gevent(environ: dict[str, str], place: Path) -> tuple[str, bool]:
    with _running(["worker", "-P", "gevent", "-c", "20", "-l", "INFO"], environ, place / "gevent.log") as worker:
        wait_until(lambda: " ready." in (place / "gevent.log").read_text(), within_s=60.0)
        began_at = time.monotonic()
        subprocess.run([sys.executable, "-c", _SENDER, "2"], env=environ, check=True)
        took_s = time.monotonic() - began_at
        worker.terminate()
        ended = worker.wait(30)
    return (f"pool gevent: 20 tasks of 2 s together in {took_s:.1f} s, exit code {ended}", took_s < 20 and not ended)


def _with_flower(environ: dict[str, str], place: Path) -> Iterator[tuple[str, bool]]:
    port = free_port()
    with ExitStack() as stack:
        flower = ["flower", f"--port={port}", "--address=127.0.0.1"]
        stack.enter_context(_running(flower, environ, place / "flower.log"))
        worker = stack.enter_context(_running(["worker", "-c", "2", "-n", "w@here"], environ, place / "worker.log"))

        def ask(path: str, data: bytes | None = None) -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", data, timeout=20.0) as answer:
                return json.load(answer)

        def finds_worker() -> bool:
            try:
                return "w@here" in ask("workers?refresh=1")
            except OSError:
                return False

        wait_until(finds_worker, within_s=60.0)
        yield "Flower finds the worker", True
        subprocess.run([sys.executable, "-c", _SENDER, "0"], env=environ, check=True)

        def succeeded() -> int:
            return sum(each["state"] == "SUCCESS" for each in ask("tasks").values())

        wait_until(lambda: succeeded() >= 20, within_s=30.0)
        yield f"Flower sees {succeeded()} of 20 tasks succeed", succeeded() == 20
        ask("worker/shutdown/w@here", b"")
        yield "Flower shuts the worker down", worker.wait(30) == 0


@contextmanager
def _running(arguments: list[str], environ: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        command = [sys.executable, "-m", "celery", "-A", "celery_app", *arguments]
        process = subprocess.Popen(command, env=environ, stdout=file, stderr=file, cwd=log.parent)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
