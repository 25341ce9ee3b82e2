"""Start a SparkSession with a suitable Java, this program's Python, and the format `reput`."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from reput_pipeline.spark.errors import cause_in
from reput_pipeline.spark.java import INSTALL_SPARK, use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # An error of source or sink is one line, without the traceback in a worker; nor have those of Python functions one.
    "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Default settings of `make_session`."""

LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    # Halves the JVM's CPU time in short runs.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Over TCP most tasks wait 40 ms for a delayed acknowledgement between JVM and Python worker, longer than a small
    # task takes. (Clusters: conf/spark-defaults.conf; it depends on the machines' directories.)
    "spark.python.unix.domain.socket.enabled": "true" if hasattr(socket, "AF_UNIX") else "false",
    "spark.python.daemon.module": "reput_pipeline.spark.worker_daemon",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
"""Additional settings if everything runs on this machine."""


QUIET_LOGGING: Final = Path(__file__).with_name("quiet_log4j2.properties")


def prepare_environment() -> None:
    """Set Spark's environment variables: Java, and the workers' Python with its packages.

    Variables that are set are kept. Spark's workers do not inherit `sys.path`, so the directories from which Reput was
    imported are added to PYTHONPATH.

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
    """Return the directory of a package; None if it is installed, where workers find it."""
    from importlib.util import find_spec

    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    directory = Path(spec.origin).resolve().parent.parent
    return None if directory.name == "site-packages" else str(directory)


def make_session(
    name: str, *, master: str | None = None, conf: Mapping[str, str] | None = None, quiet: bool = False
) -> SparkSession:
    """Return the running session, made the active one of the calling thread, or start one.

    Under `spark-submit` its settings apply, and `master` is None.

    Args:
        name: the application's name.
        master: such as `local[2]`; by default that of spark-submit, else all cores of this machine.
        conf: settings that take precedence over `DEFAULTS`.
        quiet: log only errors, from the JVM's start on.

    Raises:
        JavaMissing: there is no Java for Spark.
        ImportError: pyspark is not installed; the extra `spark` brings it.
    """
    try:
        from pyspark.conf import SparkConf
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(f"Spark is not installed; {INSTALL_SPARK}") from error
    running = running_session()
    if running is not None:
        make_active(running)
        return running
    prepare_environment()  # runs Java for its version, which takes a while
    settings = SparkConf()  # has the settings of spark-submit
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
    name_causes()
    return SparkSession.builder.config(conf=settings).getOrCreate()


def name_causes() -> None:
    """Have an error of Spark that ends this program followed by a line with its cause, if that is an error of ours.

    The text of a stream's error ends with the plan of the query.
    """
    report = sys.excepthook
    if getattr(report, "names_causes", False):
        return

    def report_with_cause(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        cause = cause_in(error)
        if cause is not None and not str(error).rstrip().endswith(cause.text):
            error.add_note(f"caused by {cause.name}: {cause.text}")
        report(kind, error, trace)

    report_with_cause.names_causes = True  # type: ignore[attr-defined]
    sys.excepthook = report_with_cause


def running_session() -> SparkSession | None:
    """Return the session of this process, whichever thread has started it."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def make_active(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread, in which Spark looks a sink's format up."""
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is not None:  # None with Spark Connect, which has no threads of a JVM
        session.setActiveSession(session)  # static


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a setting of the session while the block runs."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, str(before))
