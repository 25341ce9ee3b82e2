"""A SparkSession as the jobs and the tests want it: the right Java, the right Python, and the format `reput` known."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reput_pipeline.spark.java import INSTALL_SPARK, use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS: Final[Mapping[str, str]] = {
    # Off by default in Spark; the source narrows what it reads by it.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of every session that `make_session` makes, unless the caller says otherwise."""

LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    # Halves what a short run costs the JVM.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Spark's JVM and a Python worker exchange small packets in turn. Over TCP most tasks wait 40 ms for a delayed
    # acknowledgement, longer than a small task takes. (Off by default in Spark; elsewhere than on this machine
    # it depends on the directories there: conf/spark-defaults.conf.)
    "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
    "spark.python.daemon.module": "reput_pipeline.spark.worker_daemon",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
"""Settings besides, where everything runs on this machine."""


QUIET_LOGGING: Final = Path(__file__).with_name("quiet_log4j2.properties")


def prepare_environment() -> None:
    """Set what Spark reads from the environment when a session starts: Java, the workers' Python and its packages.

    What is set already stays. `sys.path` of this program is not inherited by Spark's workers, so the directories that
    Reput was imported from go into PYTHONPATH.

    Raises:
        JavaMissing: there is no Java for Spark.
    """
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    for package in ("reput_pipeline", "reput_protocol", "reput_client", "reput_broker"):
        directory = _directory_of(package)
        if directory is not None and directory not in paths:
            paths.append(directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def _directory_of(package: str) -> str | None:
    """Where `package` is imported from; None if that is an installation, which every worker sees by itself."""
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    directory = Path(spec.origin).resolve().parent.parent
    return None if directory.name == "site-packages" else str(directory)


def make_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, quiet: bool = False
) -> SparkSession:
    """Return the running session, or start one.

    Under `spark-submit` its settings hold, and `master` stays None.

    Args:
        name: the application's name.
        master: where to run, such as `local[2]`; without it what spark-submit says, else all cores of this machine.
        conf: settings that win over `DEFAULTS`.
        quiet: say nothing but errors, from the start of the JVM on.

    Raises:
        JavaMissing: there is no Java for Spark.
        ImportError: pyspark is not installed; the extra `spark` brings it.
    """
    try:
        from pyspark.conf import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(f"Spark is not installed; {INSTALL_SPARK}") from error
    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    prepare_environment()  # asks Java for its version, which takes a while
    settings = SparkConf()  # holds what spark-submit was given
    master = master or settings.get("spark.master", None) or os.environ.get("MASTER") or "local[*]"
    defaults = {**DEFAULTS, **(LOCAL_DEFAULTS if master.startswith("local") else {})}
    if quiet:
        java_options = defaults.get("spark.driver.extraJavaOptions", "")
        defaults["spark.driver.extraJavaOptions"] = (
            f"{java_options} -Dlog4j2.configurationFile={QUIET_LOGGING.as_uri()}".strip()
        )
        defaults["spark.log.level"] = "ERROR"
    for key, value in defaults.items():
        settings.setIfMissing(key, value)
    for key, value in (conf or {}).items():
        settings.set(key, value)
    settings.setMaster(master).setAppName(name)
    return SparkSession.builder.config(conf=settings).getOrCreate()
