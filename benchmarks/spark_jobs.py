"""The jobs `archive` and `audit` against what they are to be compared with. A part of `spark_run.py`.

`archive` of a store directory is compared with reading the same directory as a frame and having Spark write it as zstd
Parquet; `audit` with a loop in one process that does nothing but check the CRC of every body, for each core, over a
directory of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reput_pipeline.jobs.frame import run_job
from spark_measure import Line, Turns, compared
from spark_source import TOPIC, fill
from verify import crc_loop

AUDITED = 3
"""So many times as many messages are audited: they are checked faster than read."""
_FILE_BYTES = 64 << 20


class JobBench:
    """The measurements; the session is the active one, the directory `root/store` is nobody's at the time.

    Args:
        spark: the session.
        root: holds the directory `store`.
        messages: how many there are.
        size: bytes of a body.
        turns: runs them.
    """

    def __init__(self, spark: Any, root: Path, messages: int, size: int, turns: Turns) -> None:
        self._spark = spark
        self._store = root / "store"
        self._audited = root / "audited"
        self._size = size
        self._out = root / "out"
        self._messages = messages
        self._turns = turns

    def archive(self) -> Iterator[Line]:
        """A directory to Parquet."""
        ways = {
            "writer": self._writer,
            "archive": lambda: int(self._job("archive", self._store, "--to", str(self._out))["rows"]),
        }
        spent = self._turns.take(self._messages, ways)
        yield compared(
            "archive / source and Spark's writer",
            self._messages,
            spent["archive"],
            spent["writer"],
            goal=1.7,
        )

    def audit(self) -> Iterator[Line]:
        """Everything in a directory checked."""
        messages = AUDITED * self._messages
        fill(self._audited, messages, self._size, _FILE_BYTES)
        ways = {
            "loop": lambda: crc_loop(self._audited),
            "audit": lambda: int(self._job("audit", self._audited)["figures"]["records"]),
        }
        spent = self._turns.take(messages, ways)
        yield compared(
            "audit, per core / CRC loop",
            messages,
            spent["audit"],
            spent["loop"],
            cores=os.cpu_count() or 1,
            goal=0.4,
        )

    def _writer(self) -> int:
        shutil.rmtree(self._out, ignore_errors=True)
        frame = self._spark.read.format("reput").options(path=str(self._store), subscribe=TOPIC).load()
        frame.write.option("compression", "zstd").parquet(str(self._out))
        return sum(_rows_of(path) for path in self._out.glob("*.parquet"))

    def _job(self, name: str, directory: Path, *arguments: str) -> dict[str, Any]:
        shutil.rmtree(self._out, ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = run_job(name, ["--path", str(directory), "--quiet", *arguments], stop_session=False)
        if code:
            raise SystemExit(output.getvalue())
        result: dict[str, Any] = json.loads(output.getvalue().splitlines()[-1])
        return result


def _rows_of(path: Path) -> int:
    """How many rows a file's footer states."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)
