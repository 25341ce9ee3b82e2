"""The jobs `archive` and `audit`; a part of `spark_run.py`.

`archive` of a store directory is compared with a DataFrame of the directory that Spark writes as zstd Parquet, `audit`,
per core, with a loop in one process that checks only the CRC of every body.
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

from reput_pipeline.jobs.run import run_job
from spark_measure import Line, Turns, compared, rows_of
from spark_source import TOPIC, fill
from verify import crc_loop

AUDITED = 3
"""Factor for the number of messages of the audit, which is faster than the other jobs."""
_FILE_BYTES = 64 << 20


class JobBench:
    """The measurements. No broker may have the directory `root/store` open.

    Args:
        spark: the active session.
        root: has the directory `store`.
        messages: number of messages in it.
        size: bytes of a body.
        turns: runs the measurements.
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
        """Measure a directory to Parquet."""
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
        """Measure the verification of a directory."""
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
        return sum(rows_of(path) for path in self._out.glob("*.parquet"))

    def _job(self, name: str, directory: Path, *arguments: str) -> dict[str, Any]:
        shutil.rmtree(self._out, ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            code = run_job(name, ["--path", str(directory), "--quiet", *arguments], stop_session=False)
        if code:
            raise SystemExit(output.getvalue())
        result: dict[str, Any] = json.loads(output.getvalue().splitlines()[-1])
        return result
