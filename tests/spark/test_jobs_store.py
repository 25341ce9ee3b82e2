"""`reput pipeline audit` and `rebuild` on directories of this broker and of Apache RocketMQ."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from golden.test_mini_store import CONSUME_QUEUES, digests, mini_store
from reput_broker.store.message_store import MessageStore
from reput_protocol.store.layout import Geometry
from support.pipeline_jobs import Run, runner
from support.planted_damage import Finding, Planter, explained
from support.store_samples import MESSAGES, copied, examine, fill, hashes
from support.stores import flip_bit, small_options, tree


@pytest.fixture
def run(spark: Any, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sound") / "store"
    fill(root)
    return root


def without_lock(root: Path) -> dict[str, tuple[str, int]]:
    return {name: value for name, value in hashes(root).items() if name != "lock"}


def test_a_sound_store_is_clean(run: Run, sound: Path) -> None:
    before = without_lock(sound)
    ran = run("audit", "--path", sound)
    assert (ran.code, ran.result["clean"]) == (0, True), ran.err
    expected = examine(sound).report.figures
    figures = ran.result["figures"]
    assert {name: figures[name] for name in expected} == dict(expected)
    assert (figures["records"], figures["files_read_again"]) == (MESSAGES, 0)
    assert without_lock(sound) == before


def test_all_planted_damage_is_found_and_nothing_else(run: Run, sound: Path, tmp_path: Path) -> None:
    root = copied(sound, tmp_path / "store")
    kinds = ("body", "magic", "unit offset", "unit tag", "index previous", "index slot", "checkpoint", "topics")
    planted = Planter(root, 7, slots=16).plant(*kinds, "stray file", "torn tail")
    assert len(planted) == len(kinds) + 2
    ran = run("audit", "--path", root)
    assert ran.code == 7
    found = [Finding(fault["kind"], Path(fault["file"]), fault["position"]) for fault in ran.result["faults"]]
    assert explained(planted, set(found)) == ""
    assert ran.result["fault_count"] == len(found) == len(ran.lines) == len(planted)
    assert ran.result["faults_by_kind"] == dict(Counter(fault.kind for fault in found))
    refused = run("rebuild", "--path", root)
    assert refused.code == 7
    assert "nothing was changed" in refused.result["error"]


def test_a_job_as_a_program_says_nothing_but_what_it_has_to_say(sound: Path, tmp_path: Path) -> None:
    root = copied(sound, tmp_path / "store")
    (planted,) = Planter(root, 3, slots=16).plant("body")
    command = [sys.executable, "-m", "reput_pipeline.jobs.audit", "--path", str(root), "--master", "local[1]"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 7, done.stderr
    fault, last = done.stdout.splitlines()
    (finding,) = planted.findings
    assert fault.startswith(f"record: {finding.file} at byte {finding.position}: ")
    assert json.loads(last)["status"] == "findings"
    # The JVM's own word on the modules that it is started with cannot be turned off.
    said = [line for line in done.stderr.splitlines() if not line.startswith(("WARNING: ", "audit: "))]
    assert said == []


def test_queues_and_index_come_out_byte_for_byte(run: Run, sound: Path, tmp_path: Path) -> None:
    root = copied(sound, tmp_path / "store")
    wanted = {name: data for name, data in tree(root).items() if name.startswith(("consumequeue", "index"))}
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    flip_bit(min((root / "index").iterdir()), 200)
    ran = run("rebuild", "--path", root)
    assert ran.code == 0, ran.err
    assert ran.result["made"]["queues"] == "60 units in 2 queues"
    made = {name: data for name, data in tree(root).items() if name.startswith(("consumequeue", "index"))}
    assert made == wanted
    assert examine(root).report.is_clean
    shutil.rmtree(root / "index")
    ran = run("rebuild", "--path", root)
    assert (ran.code, ran.result["status"], list(ran.result["made"])) == (8, "partial", ["queues"])
    assert "--index-slots and --index-entries" in ran.result["not_made"]["index"]


def test_a_store_of_rocketmq(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "store"
    mini_store(root)
    ran = run("audit", "--path", root, "--consume-queue-entries", 3)
    expected = examine(root, geometry=Geometry(consume_queue_entries=3)).report
    assert ran.result["faults_by_kind"] == dict(expected.kinds)  # its queues were left out
    assert run("rebuild", "--path", root, "--queues", "--consume-queue-entries", 3).code == 0
    assert digests(root, CONSUME_QUEUES) == CONSUME_QUEUES


def test_what_a_broker_has_and_what_is_no_store_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("audit", "--path", tmp_path).code == 5
    store = MessageStore(small_options(tmp_path / "s"), clock_ms=lambda: 0)
    store.open()
    before = hashes(tmp_path / "s")
    for name in ("audit", "rebuild"):
        ran = run(name, "--path", tmp_path / "s")
        assert ran.code == 1
        assert "is in use by process" in ran.result["error"]
    assert hashes(tmp_path / "s") == before
    store.close()
    ran = run("audit", "--path", tmp_path / "s", "--delay-levels", "1 fortnight")
    assert (ran.code, ran.result["argument"]) == (2, "--delay-levels")
