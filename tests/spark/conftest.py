"""One Spark session for the whole run: it takes ten seconds to start."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.store_samples import fill

_ONLY_WITH = {"CLUSTERS": "test_clusters.py", "DELTA": "test_delta.py"}
collect_ignore = [file for variable, file in _ONLY_WITH.items() if not os.environ.get(variable)]
"""Those that run with `CLUSTERS=all` and `DELTA=1`."""

pyspark = pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session: two cores of this machine."""
    from reput_pipeline.spark.session import make_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = make_session(
            "tests",
            master="local[2]",
            conf={
                "spark.driver.memory": "768m",
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.warehouse.dir": str(warehouse),
                "spark.local.dir": str(warehouse),
                "spark.log.level": "ERROR",
                "spark.sql.streaming.metricsEnabled": "false",
                "spark.executorEnv.PYTHONWARNINGS": "ignore",
            },
        )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings of Spark's own Python code cannot be fixed here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"pyspark\..*|py4j\..*")
        warnings.filterwarnings("ignore", category=ResourceWarning)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store directory with the messages of `store_samples`, for all tests of a module."""
    path = tmp_path_factory.mktemp("store")
    fill(path)
    return path
