"""Are two archives equal, message by message, in all but offsets and store fields? Read without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

QueueKey = tuple[str, int]
COMPARED: Final = ("keys", "tags", "body", "properties", "flag", "bornTimestamp", "bodyCRC")
"""The columns that must be equal; topic, queue and the order in a queue are compared besides."""
NOT_COMPARED: Final = ("queueOffset", "physicalOffset", "brokerName", "storeTimestamp", "reconsumeTimes")
"""What a broker says of a message that it stores."""


class QueueCounts(NamedTuple):
    """What was found of one queue."""

    first: int
    """Messages in the first archive."""
    second: int
    """Messages in the second one."""
    equal: int
    """Messages at the same place of the queue that are equal in all that is compared."""


def compared(first: Path, second: Path) -> dict[QueueKey, QueueCounts]:
    """Compare two archives queue by queue."""
    one, other = _files(first), _files(second)
    counts = {}
    for queue in sorted(one.keys() | other.keys()):
        left, right = _table(one.get(queue, [])), _table(other.get(queue, []))
        rows = min(left.num_rows, right.num_rows)
        counts[queue] = QueueCounts(left.num_rows, right.num_rows, _equal(left.slice(0, rows), right.slice(0, rows)))
    return counts


def distinct_ids(archive: Path) -> int:
    """Return how many different unique ids an archive has."""
    found = [
        pc.map_lookup(_table(paths).column("properties").combine_chunks(), "UNIQ_KEY", "first")
        for paths in _files(archive).values()
    ]
    return len(pc.unique(pa.concat_arrays(found))) if found else 0


def _files(archive: Path) -> dict[QueueKey, list[Path]]:
    """The files of each queue that the manifests name; a file's name says broker, queue, first and last offset."""
    found: dict[QueueKey, list[Path]] = {}
    for manifest in sorted((archive / "_reput").glob("[0-9]*.json")):
        if manifest.name.endswith(".plan.json"):
            continue
        for entry in json.loads(manifest.read_bytes())["files"]:
            path = archive / entry["path"]
            queue_id = int(path.stem.split("-")[-3])
            found.setdefault((entry["topic"], queue_id), []).append(path)
    return found


def _table(paths: list[Path]) -> pa.Table:
    columns = [*COMPARED, "queueOffset"]
    tables = [pq.read_table(path, columns=columns, partitioning=None) for path in paths]
    if not tables:
        return pa.table({name: pa.array([]) for name in columns})
    return pa.concat_tables(tables).sort_by("queueOffset").combine_chunks()


def _equal(left: pa.Table, right: pa.Table) -> int:
    """Return in how many rows two tables are equal, null being equal to null."""
    same = pa.array([True] * left.num_rows, pa.bool_())
    for name in COMPARED:
        for one in _comparable(left, name, right):
            same = pc.and_(same, one)
    return int(pc.sum(same).as_py() or 0)


def _comparable(left: pa.Table, name: str, right: pa.Table) -> Iterator[pa.Array]:
    if left.num_rows == 0:
        return
    one, other = left.column(name).combine_chunks(), right.column(name).combine_chunks()
    if pa.types.is_map(one.type):
        one, other = (pa.array([repr(sorted(row or ())) for row in side.to_pylist()]) for side in (one, other))
    both_null = pc.and_(pc.is_null(one), pc.is_null(other))
    yield pc.or_(both_null, pc.fill_null(pc.equal(one, other), fill_value=False))
