"""Django's own tests of its tasks, from its source distribution, on Reput.

    python tests/tasks/django_own_tests.py [--python PROGRAM] [--test NAME]

Django has them for its two backends: the dummy one, which keeps tasks, and the immediate one, which runs each when it
is enqueued. Backends of these names are made of Reput's: the first one remembers what it has sent, the second one has a
worker that runs one task. Django 6 needs Python 3.12 or later; it is installed for this run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from reput_broker import BrokerConfig
from reput_broker.background import BackgroundBroker

_CLIENT = Path(__file__).resolve().parents[2] / "client"
_PYTHONS = ("python3.14", "python3.13", "python3.12")
_BACKENDS = '''
import os
import threading
from uuid import uuid4

from reput_client.tasks.django import ReputBackend
from reput_client.tasks.django.backend import configuration_of
from reput_client.tasks.django.management.commands.reput_worker import Worker


class Named(ReputBackend):
    """Has topics of its own, and the options of Django's backends: none."""

    def __init__(self, alias, params):
        super().__init__(alias, params)
        self.begin()

    def begin(self):
        options = {"server": os.environ["OWN_SERVER"], "name": f"own-{uuid4().hex}"}
        self.configuration = configuration_of(options, self.queues)


class DummyBackend(Named):
    """Remembers what it has sent."""

    def __init__(self, alias, params):
        super().__init__(alias, params)
        self.results = []

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        self.results.append(result)
        return result

    def clear(self):
        self.results.clear()
        self.begin()


class One(Worker):
    """Runs one task."""

    def _handle(self, message):
        try:
            super()._handle(message)
        finally:
            self.stop()


class ImmediateBackend(Named):
    """Has a worker for each task."""

    supports_defer = False

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        One(self, [task.queue_name], concurrency=1, invisible_s=60.0).run()
        result.refresh()
        return result
'''
_SETTINGS = """
SECRET_KEY = "own"
USE_TZ = True
INSTALLED_APPS = ["reput_client.tasks.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TEST_RUNNER = "own_runner.Runner"
"""
_SKIPPED = {
    "DummyBackendTestCase.test_refresh_result": "it changes the list in which Django's backend has the states",
    "DummyBackendTestCase.test_refresh_result_async": "it changes the list in which Django's backend has the states",
    "ImmediateBackendTestCase.test_cannot_get_result": "Reput's backend returns results",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "Reput's backend returns results",
}
_RUNNER = f"""
import json
import unittest

from django.test.runner import DiscoverRunner

SKIPPED = {_SKIPPED!r}


class Result(unittest.TextTestResult):
    outcomes = {{}}

    def startTest(self, test):
        super().startTest(test)
        self.outcomes[test.id()] = ["passed", ""]

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcomes[test.id()] = ["skipped", reason]

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.outcomes[test.id()] = ["failed", str(error[1])]

    def addError(self, test, error):
        super().addError(test, error)
        self.outcomes[test.id()] = ["failed", str(error[1])]

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.outcomes[test.id()] = ["failed", str(error[1])]

    def stopTestRun(self):
        super().stopTestRun()
        with open("report.json", "w") as file:
            json.dump(self.outcomes, file)


class Runner(DiscoverRunner):
    def get_resultclass(self):
        return Result

    def build_suite(self, *args, **kwargs):
        suite = super().build_suite(*args, **kwargs)
        for test in suite:
            name = f"{{type(test).__name__}}.{{test._testMethodName}}"
            if name in SKIPPED:
                setattr(test, test._testMethodName, unittest.skip(SKIPPED[name])(lambda: None))
        return suite
"""


def main() -> int:
    """Install Django, run its tests, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help=f"the interpreter; by default one of {', '.join(_PYTHONS)}")
    parser.add_argument("--test", default="tasks", help="a part of the tests, such as tasks.test_tasks")
    options = parser.parse_args()
    python = options.python or next(filter(None, map(_found, _PYTHONS)), None)
    if python is None:
        sys.exit("Django 6 needs Python 3.12 or later, and none is on PATH; name one with --python")
    with tempfile.TemporaryDirectory(prefix="reput-own-tests-") as directory:
        place = Path(directory)
        installed = place / "venv/bin/python"
        subprocess.run([python, "-m", "venv", str(place / "venv")], check=True)
        pip = [str(installed), "-m", "pip", "--disable-pip-version-check", "-q"]
        environ = {**os.environ, "REPUT_KERNEL": "interpreted"}
        subprocess.run([*pip, "install", f"{_CLIENT}[django]", "django>=6"], check=True, env=environ)
        sources = place / "sources"
        subprocess.run(
            [
                *pip,
                "download",
                "--no-deps",
                "--no-binary",
                ":all:",
                "-d",
                str(sources),
                f"django=={_version(installed)}",
            ],
            check=True,
        )
        (archive,) = sources.iterdir()
        with tarfile.open(archive) as file:
            file.extractall(sources, filter="data")
        shutil.copytree(next(sources.glob("*/tests/tasks")), place / "tasks")
        for each in (place / "tasks").glob("*.py"):
            text = each.read_text()
            for kind in ("dummy", "immediate"):
                text = text.replace(f"django.tasks.backends.{kind}", "own_backends")
            each.write_text(text)
        for name, text in (("backends", _BACKENDS), ("settings", _SETTINGS), ("runner", _RUNNER)):
            (place / f"own_{name}.py").write_text(text)
        config = BrokerConfig.model_validate({"data_dir": place / "store", "port": 0, "http_port": None})
        with BackgroundBroker(config) as broker:
            run = subprocess.run(
                [str(installed), "-W", "ignore", "-m", "django", "test", options.test, "-v", "1"],
                cwd=place,
                env={**environ, "DJANGO_SETTINGS_MODULE": "own_settings", "OWN_SERVER": broker.address},
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                text=True,
            )
        report = place / "report.json"
        if report.exists():
            _print(_version(installed), json.loads(report.read_text()))
    if run.returncode:
        print(run.stderr[-8000:])
    return run.returncode


def _found(name: str) -> str | None:
    """Return an interpreter of a version, which `pyenv` may hide behind a program that does not run."""
    pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{name.removeprefix('python')}.*/bin/python"))
    return str(pyenv[-1]) if pyenv else shutil.which(name)


def _version(python: Path) -> str:
    asked = [str(python), "-c", "import django; print(django.__version__)"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def _print(version: str, outcomes: dict[str, tuple[str, str]]) -> None:
    """Print how many of each class passed, and what did not."""
    counts: dict[str, Counter[str]] = {}
    notes = []
    for test, (word, reason) in sorted(outcomes.items()):
        counts.setdefault(test.rpartition(".")[0], Counter())[word] += 1
        if word != "passed":
            notes.append(f"  {word}: {test}: {reason.splitlines()[0][:160]}")
    print(f"\nDjango {version}: tests of its own on Reput")
    for place, results in counts.items():
        print(f"  {place}: {', '.join(f'{number} {word}' for word, number in sorted(results.items()))}")
    print("\n".join(notes))


if __name__ == "__main__":
    sys.exit(main())
