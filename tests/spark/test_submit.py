"""The jobs as `spark-submit` starts them: by the file of their module, which puts its directory first on the path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import reput_client
import reput_pipeline
import reput_protocol
from reput_broker.background import BackgroundBroker
from reput_client.blocking import Producer
from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.jobs import JOBS
from reput_pipeline.spark.java import find_java_home
from support.store_samples import MESSAGES, fill

JOB_FILES = Path(reput_pipeline.__file__).parent / "jobs"
SETTINGS = Path(__file__).resolve().parents[2] / "conf" / "spark-defaults.conf"


@pytest.mark.parametrize("name", JOBS)
def test_every_job_is_a_file_that_runs(name: str) -> None:
    command = [sys.executable, str(JOB_FILES / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert f"Usage: reput pipeline {name}" in done.stdout


JOB_AND_COUNT = """
import json, os, runpy, sys
from pyspark.sql import SparkSession
from reput_pipeline.data_source import ReputDataSource

def on_an_executor(_):
    from reput_protocol import kernel
    return kernel.FORM, kernel.__file__

address, job, *arguments = sys.argv[1:]
sys.path[0], sys.argv = os.path.dirname(job), [job, *arguments]
try:
    runpy.run_path(job, run_name="__main__")
except SystemExit as ended:
    assert not ended.code

spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(ReputDataSource)
rows = spark.read.format("reput").options(nameServer=address, subscribe="orders").load()
(kernel,) = spark.sparkContext.parallelize([0], 1).map(on_an_executor).collect()
print(json.dumps([*kernel, sorted(int(bytes(row.body)) for row in rows.collect())]))
"""


def submitted(directory: Path, *arguments: str) -> list[str]:
    """The last two lines that were printed."""
    submit = str(Path(sys.executable).with_name("spark-submit"))
    home = find_java_home()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **({"JAVA_HOME": home} if home else {})}
    command = [submit, "--master", "local[2]", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment, cwd=directory
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()[-2:]


@pytest.mark.long
def test_a_job_under_the_shipped_settings_and_executors_that_get_the_packages_as_a_zip(
    new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path
) -> None:
    broker = new_reput_broker()
    with Producer(broker.address, group="p") as producer:
        producer.send_many("orders", [b"%d" % number for number in range(500)])
    with zipfile.ZipFile(tmp_path / "reput.zip", "w") as packed:
        for package in (reput_protocol, reput_client, reput_pipeline):
            for path in Path(package.__path__[0]).rglob("*.py"):
                packed.write(path, path.relative_to(Path(package.__path__[0]).parent))
    (tmp_path / "job_and_count.py").write_text(JOB_AND_COUNT)
    fill(tmp_path / "s")
    job = [str(JOB_FILES / "archive.py"), "--path", str(tmp_path / "s"), "--to", str(tmp_path / "a")]
    settings = ["--properties-file", str(SETTINGS), "--py-files", "reput.zip"]
    of_job, counted = submitted(tmp_path, *settings, "job_and_count.py", broker.address, *job)
    result = json.loads(of_job)
    assert (result["status"], result["rows"]) == ("done", MESSAGES)
    assert sum(file.rows for file in ArchiveDirectory(tmp_path / "a").files()) == MESSAGES
    form, file, bodies = json.loads(counted)
    assert (form, "reput.zip" in file) == ("interpreted", True)
    assert bodies == [*range(500)]
