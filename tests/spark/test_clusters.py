"""The same streaming query on every kind of cluster that one machine can run.

`make test CLUSTERS=all ARGS=tests/spark/test_clusters.py` runs it: on `local[2]`, `local-cluster` and a standalone
master with two workers, with a streaming aggregate at the same time. `CLUSTERS=standalone` runs that alone, without
the aggregate. Two Spark clusters take too long to start for `make test`. On `packaged`, a standalone cluster too,
executors have a Python without any package, and get the file that the job `package` makes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reput_broker.background import BackgroundBroker
from reput_client.blocking import Admin, Message, Producer
from reput_protocol import kernel
from support import spark_cluster
from support.packed_for_spark import packed_file
from support.sink_client import published
from support.spark_cluster import SparkCluster

pytestmark = pytest.mark.process

_MASTERS = {"standalone": 2, "packaged": 2, "local[2]": 1, "local-cluster[2,1,1024]": 2}
"""How many executors each has."""
_ALL = os.environ.get("CLUSTERS") == "all"
_WANTED = list(_MASTERS) if _ALL else [os.environ.get("CLUSTERS", "standalone")]
_PROGRAM = Path(spark_cluster.__file__).with_name("streaming_query.py")
_PATIENCE_S = 600.0
MESSAGES = 1200


@pytest.fixture
def broker(new_reput_broker: Callable[..., BackgroundBroker]) -> BackgroundBroker:
    found = new_reput_broker(store={"flush": "sync"})
    with Admin(found.address) as admin, Producer(found.address, group="p") as producer:
        for topic in ("orders", "copies"):
            admin.create_topic(topic, queues=3)
        for queue_id in range(3):
            messages = [
                Message("orders", b"order-%05d" % number, tag=f"t{number % 4}", keys=[f"k{number}"])
                for number in range(MESSAGES)
                if number % 3 == queue_id
            ]
            producer.send_batch(messages, queue_id=queue_id)
    return found


@contextlib.contextmanager
def cluster(kind: str, directory: Path) -> Iterator[str]:
    """Yield the URL of a master."""
    if kind in ("standalone", "packaged"):
        with SparkCluster(directory) as found:
            yield found.master
    else:
        yield kind


@pytest.mark.parametrize("kind", _WANTED)
def test_a_stream_comes_to_the_same_on_every_cluster(broker: BackgroundBroker, tmp_path: Path, kind: str) -> None:
    with cluster(kind, tmp_path / "cluster") as master:
        command = [sys.executable, str(_PROGRAM), "--master", master, "--broker", broker.address]
        command += ["--to", "copies", "--checkpoint", str(tmp_path / "checkpoint")]
        command += ["--count"] if _ALL else []
        environment = dict(os.environ)
        if kind == "packaged":
            venv.create(tmp_path / "bare", with_pip=False)
            # The driver and the executors start the same name, each by its own PATH.
            environment |= {"PYSPARK_PYTHON": "python3", "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
            command += ["--conf", f"spark.archives={packed_file(tmp_path)}#reput"]
            command += ["--conf", "spark.executorEnv.PYTHONPATH=reput"]
            command += ["--conf", f"spark.executorEnv.PATH={tmp_path / 'bare' / 'bin'}:/usr/bin:/bin"]
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            start_new_session=True,
            env=environment,
        )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert sum(found["batches"]) == MESSAGES
    assert len(found["batches"]) >= 2
    assert found["counts"] == ({f"t{number}": MESSAGES // 4 for number in range(4)} if _ALL else {})
    assert len(found["executors"]) == _MASTERS[kind]
    if kind == "packaged":
        assert found["kernels"] == [f"{kernel.FORM} reput/reput_protocol/kernel/__init__.py"]
    bodies = Counter(body for queue in published(broker.address, "copies").values() for body in queue)
    assert bodies == Counter(b"ORDER-%05d" % number for number in range(MESSAGES))
