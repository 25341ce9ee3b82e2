"""With any content of a directory, verifying ends with faults, not with an exception, and a repair with a start."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from reput_broker.tools.dump import DumpRange, ExportRange, TopicExport, dump_index, dump_log, dump_offsets, dump_topics
from reput_broker.tools.repair import apply_repair
from reput_broker.tools.repair_plan import plan_repair
from reput_protocol.store.layout import Geometry, StoreLayout
from support.store_samples import copied, examine, fill, write_index
from support.stores import opened, small_options

SIZES = Geometry(commit_log_file_size=4096, consume_queue_entries=10, index_slots=16)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("good") / "store"
    fill(root)
    write_index(root)
    return root


def garble(root: Path, rng: random.Random) -> str:
    path = rng.choice([path for path in sorted(root.rglob("*")) if path.is_file() and path.name != "lock"])
    data = bytearray(path.read_bytes())
    how = rng.choice(["bytes", "zeros", "shorter", "longer", "gone", "empty", "swap"])
    at = rng.randrange(len(data) + 1)
    count = rng.choice([1, 4, 60, 600])
    if how == "bytes":
        data[at : at + count] = rng.randbytes(len(data[at : at + count]))
    elif how == "zeros":
        data[at : at + count] = bytes(len(data[at : at + count]))
    elif how == "shorter":
        del data[at:]
    elif how == "longer":
        data += rng.randbytes(count)
    elif how == "empty":
        data.clear()
    elif how == "swap":
        other = rng.randrange(len(data) + 1)
        data[at : at + count], data[other : other + count] = (data[other : other + count], data[at : at + count])
    path.write_bytes(data)
    if how == "gone":
        path.unlink()
    return f"{how} {path.relative_to(root)} at {at}"


@pytest.mark.parametrize("seed", range(60))
def test_garbage_anywhere(good: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    root = copied(good, tmp_path / "store")
    if rng.random() < 0.3:
        (root / "abort").write_text("1")
    done = [garble(root, rng) for _ in range(rng.choice([1, 1, 3]))]
    found = examine(root, geometry=SIZES)
    layout = StoreLayout(root, geometry=SIZES)
    list(dump_log(layout, DumpRange()))
    list(dump_index(layout, DumpRange()))
    list(dump_topics(layout))
    if any(queue.topic == "T" for queue in layout.queues):
        list(TopicExport(layout, "T", ExportRange()).messages())
    plan = plan_repair(found)
    apply_repair(found, plan)
    shutil.rmtree(root / "index", ignore_errors=True)
    store = opened(small_options(root))
    assert store.close(), done
    list(dump_offsets(StoreLayout(root, geometry=SIZES)))
