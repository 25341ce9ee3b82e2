"""`reput pipeline audit` and `rebuild` on directories that Apache RocketMQ wrote: all damage found, every byte made."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import workload
from conformance.apache import SMALL, Apache
from conformance.counts import COUNTS
from conformance.test_derived_files import index_files, queue_files
from conformance.test_store_handover import apache_puts
from support.pipeline_jobs import Run, runner
from support.planted_damage import KINDS, Finding, Planter, explained
from support.store_samples import copied, hashes
from support.stores import flip_bit

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]

MESSAGES = 700
ROUNDS = 4


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """One Spark session for all jobs of this file."""
    from reput_pipeline.spark.session import make_session

    spark = make_session("conformance", master="local[2]", quiet=True)
    yield
    spark.stop()


@pytest.fixture
def run(session: None, capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that RocketMQ filled and closed."""
    root = tmp_path_factory.mktemp("rocketmq") / "store"
    with Apache("store", root) as apache:
        apache_puts(apache, [*workload.messages(51, MESSAGES)])
        apache.stop()
    return root


def findings(run: Run, root: Path) -> set[Finding]:
    ran = run("audit", "--path", root)
    found = [Finding(each["kind"], Path(each["file"]), each["position"]) for each in ran.result["faults"]]
    assert ran.code == (7 if found else 0), ran.err
    assert ran.result["fault_count"] == len(set(found)) == len(found)
    return set(found)


def test_planted_damage_is_found_and_nothing_else(run: Run, written: Path, tmp_path: Path) -> None:
    before = hashes(written)
    assert findings(run, written) == set()
    assert {name: value for name, value in hashes(written).items() if name != "lock"} == {
        name: value for name, value in before.items() if name != "lock"
    }
    for seed in range(ROUNDS):
        root = copied(written, tmp_path / f"{seed}")
        kinds = [*KINDS]
        random.Random(seed).shuffle(kinds)
        planted = Planter(root, seed, slots=SMALL.index_slots).plant(*kinds[seed % 2 :: 2])
        assert len(planted) > 5
        text = explained(planted, findings(run, root))
        assert not text, text
        COUNTS["damages planted in RocketMQ's directories that the audit named"] += len(planted)


def test_what_a_kill_leaves_is_no_damage(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with Apache("store", root) as apache:
        apache_puts(apache, [*workload.messages(52, MESSAGES)])
        apache.kill()
    assert findings(run, root) == set()


def test_queues_and_index_come_out_byte_for_byte(run: Run, written: Path, tmp_path: Path) -> None:
    queues, index = queue_files(written), index_files(written)
    assert len(index) > 1
    root = copied(written, tmp_path / "store")
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    for path in (root / "index").iterdir():
        flip_bit(path, 100)
    ran = run("rebuild", "--path", root)
    assert ran.code == 0, ran.result
    assert queue_files(root) == queues
    assert index_files(root) == index
    COUNTS["files of `reput pipeline rebuild` byte-identical"] += len(queues) + len(index)
    assert findings(run, root) == set()
