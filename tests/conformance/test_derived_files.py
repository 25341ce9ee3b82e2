"""Files that both derive from the same log: queues, index and checkpoint, byte for byte."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from conformance import workload
from conformance.apache import Apache, Geometry
from conformance.counts import COUNTS
from conformance.reput_side import REPUT_WRITES_INDEX, MovingClock, open_store, put_lists, store_options
from conformance.test_store_handover import apache_puts
from golden.test_mini_store import CONSUME_QUEUES, SHA256, digests, mini_store
from reput_broker.tools.rebuild import REBUILDERS, rebuild
from reput_protocol.store.layout import Geometry as ToolGeometry
from support.store_samples import examine
from support.stores import T0

pytestmark = pytest.mark.process

MESSAGES = 700
MINI = Geometry(commit_log_file_size=512, consume_queue_entries=3, index_slots=8, index_entries=4)
MINI_INDEX = [
    "9e234aa508e0dd4309fbce93c54f7307e1d3362845b81fceace379b2857ed6d7",
    "f1cec41866a1156b28503855ef6648a0041612df119bb2f842ff9d6a2ddce681",
]
"""SHA-256 of the index files of the miniature store, whose names tell when they were made."""


def queue_files(data_dir: Path) -> dict[str, bytes]:
    """The files below `consumequeue/`."""
    root = data_dir / "consumequeue"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def index_files(data_dir: Path) -> list[bytes]:
    """The files of `index/`, oldest first."""
    return [path.read_bytes() for path in sorted((data_dir / "index").iterdir())]


def only_the_log(source: Path, target: Path) -> Path:
    """A directory with nothing but the log of another, as if after a crash."""
    shutil.copytree(source / "commitlog", target / "commitlog")
    (target / "abort").write_text("4711")
    return target


@pytest.mark.parametrize("writer", [pytest.param("reput", marks=pytest.mark.long), "apache"])
def test_both_rebuild_the_same_files(tmp_path: Path, writer: str) -> None:
    written = tmp_path / "written"
    lists = [*workload.messages(11, MESSAGES)]
    if writer == "reput":
        store = open_store(written, clock=MovingClock(random.Random(11)))
        put_lists(store, lists)
        assert store.close()
    else:
        with Apache("store", written) as apache:
            apache_puts(apache, lists)
            apache.stop()

    by_apache = only_the_log(written, tmp_path / "by-apache")
    with Apache("store", by_apache) as apache:
        apache.stop()
    by_reput = only_the_log(written, tmp_path / "by-reput")
    assert open_store(by_reput).close()

    queues = queue_files(by_apache)
    assert queue_files(by_reput) == queues
    assert queue_files(written) == queues
    COUNTS["queue files byte-identical"] += len(queues)
    index = index_files(by_apache)
    assert len(index) > 1
    if REPUT_WRITES_INDEX:
        assert index_files(by_reput) == index
        COUNTS["index files byte-identical"] += len(index)
    if REPUT_WRITES_INDEX or writer == "apache":
        assert index_files(written) == index

    by_tool = only_the_log(written, tmp_path / "by-tool")
    sizes = store_options(by_tool)
    geometry = ToolGeometry(0, sizes.consume_queue_entries, sizes.index_slots, sizes.index_entries)
    found = examine(by_tool, geometry=geometry)
    rebuild(found.layout, found.log.kept_end, list(REBUILDERS.values()))
    assert queue_files(by_tool) == queues
    assert index_files(by_tool) == index
    COUNTS["files of `reput store rebuild` byte-identical"] += len(queues) + len(index)


@pytest.mark.parametrize("writer", ["reput", pytest.param("apache", marks=pytest.mark.long)])
def test_each_goes_on_with_what_the_tool_rebuilt(tmp_path: Path, writer: str) -> None:
    """A directory that either has closed in order, with rebuilt queues and index: no broker rebuilds them again."""
    root = tmp_path / "store"
    lists = [*workload.messages(12, MESSAGES)]
    if writer == "reput":
        store = open_store(root, clock=MovingClock(random.Random(12)))
        put_lists(store, lists)
        assert store.close()
    else:
        with Apache("store", root) as apache:
            apache_puts(apache, lists)
            apache.stop()
    queues, index = queue_files(root), index_files(root)
    found = examine(root)
    rebuild(found.layout, found.log.kept_end, list(REBUILDERS.values()))
    assert queue_files(root) == queues
    assert index_files(root) == index
    names = sorted(path.name for path in (root / "index").iterdir())

    with Apache("store", root) as apache:
        apache.stop()
    assert sorted(path.name for path in (root / "index").iterdir()) == names
    assert (queue_files(root), index_files(root)) == (queues, index)
    assert open_store(root).close()
    assert sorted(path.name for path in (root / "index").iterdir()) == names
    assert queue_files(root) == queues


def test_apache_makes_the_known_files_of_the_miniature_store(tmp_path: Path) -> None:
    """The vectors that Reput is held to are what RocketMQ writes."""
    data_dir = tmp_path / "mini"
    mini_store(data_dir)
    with Apache("store", data_dir, geometry=MINI) as apache:
        key = {"max": 32, "begin": 0, "end": T0 + 10_000}
        found = [len(apache.records("by_key", topic="T", key=name, **key)) for name in ("k1", "U3", "k9")]
        assert found == [2, 1, 0]
        apache.stop()
    assert digests(data_dir, SHA256) == SHA256
    index = sorted((data_dir / "index").iterdir())
    assert [*digests(data_dir, [f"index/{path.name}" for path in index]).values()] == MINI_INDEX
    COUNTS["files of the miniature store byte-identical"] += len(SHA256) + len(index)
    assert len(CONSUME_QUEUES) == 3
    checkpoint = (data_dir / "checkpoint").read_bytes()
    times = [int.from_bytes(checkpoint[at : at + 8], "big") for at in range(0, 40, 8)]
    assert times == [0, T0 + 4001, T0 + 2500, 0, 726]
