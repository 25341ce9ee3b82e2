"""Topics in Delta and Iceberg tables: rows and progress are committed together."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reput_broker.background import BackgroundBroker
from reput_broker.store.base.results import Block
from reput_client.arrow import read_arrow
from reput_client.blocking import Admin, Message, Producer
from reput_client.consume.arrow_columns import arrow_schema
from reput_client.errors import DamagedStore
from reput_pipeline.lake import copying as copying_module
from reput_pipeline.lake.copying import Copying, open_table
from reput_pipeline.lake.table import (
    LakeTable,
    OtherSource,
    Progress,
    ProgressMoved,
    SchemaMismatch,
    TableChanged,
    TableOptions,
)
from reput_pipeline.source.offline import OfflineStore
from reput_pipeline.source.options import parse_source_options
from reput_protocol.exit_codes import ExitCode
from reput_protocol.record.put_block import encode_put_block
from support.pipeline_jobs import Run, runner
from support.store_samples import MESSAGES, fill, fill_tables
from support.stores import BORN_HOST, T0, dispatch_all, flip_bit, opened, put, small_options
from support.waiting import wait_until

for library in ("deltalake", "pyiceberg"):
    pytest.importorskip(library)
lake_tables = import_module("support.lake_tables")

COLUMNS = ["topic", "queueId", "queueOffset", "tags", "body"]


@pytest.fixture(params=["delta", "iceberg"])
def table_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return runner(capfd)


def places(rows: pa.Table) -> list[tuple[str, int, int, bytes]]:
    names = ["topic", "queueId", "queueOffset", "body"]
    return sorted(tuple(row[name] for name in names) for row in rows.select(names).to_pylist())


def stored(root: Path) -> list[tuple[str, int, int, bytes]]:
    return places(read_arrow(root, "T", columns=COLUMNS).read_all())


def archived(table_format: str, place: Path) -> list[tuple[str, int, int, bytes]]:
    return places(lake_tables.read(table_format, place))


class Job:
    """One instance of the job, in this process."""

    def __init__(
        self,
        table_format: str,
        root: Path,
        place: Path,
        *,
        as_broker: str = "",
        same_source: bool = False,
        **given: str,
    ) -> None:
        schema = arrow_schema(COLUMNS)
        self.table: LakeTable = open_table(table_format, TableOptions(str(place), schema))
        options = parse_source_options({"subscribe": "T", **(given or {"path": str(root)})}, streaming=False)
        self.copying = Copying(self.table, options, schema, as_broker=as_broker, same_source=same_source)

    def next(self, most: int = 20) -> tuple[int, bool]:
        return self.copying.next(most)

    def before_commit(self, what: Callable[[], object]) -> None:
        """Call something between the loading of the table and the next commit."""
        append = self.table.append
        waiting = [what]

        def appending(rows: pa.RecordBatchReader, progress: Progress, row_bytes: int) -> None:
            if waiting:
                waiting.pop()()
            append(rows, progress, row_bytes)

        self.table.append = appending  # type: ignore[method-assign]


def test_a_directory_becomes_a_table_batch_by_batch(run: Run, table_format: str, root: Path, tmp_path: Path) -> None:
    arguments = ("archive", "--path", root, "--to", tmp_path / "t", "--format", table_format)
    first = run(*arguments, "--batch-messages", 20, "--batches", 1)
    assert (first.code, first.result["batches"], first.result["rows"]) == (0, 1, 20), first.err
    rest = run(*arguments, "--batch-messages", 20)
    assert (rest.result["batches"], rest.result["rows"]) == (2, MESSAGES - 20)
    assert archived(table_format, tmp_path / "t") == stored(root)
    assert run(*arguments).result["rows"] == 0
    assert archived(table_format, tmp_path / "t") == stored(root)


def test_all_columns_are_as_they_are_read(run: Run, table_format: str, root: Path, tmp_path: Path) -> None:
    run("archive", "--path", root, "--to", tmp_path / "t", "--format", table_format)
    order = [("queueId", "ascending"), ("queueOffset", "ascending")]
    wanted = read_arrow(root, "T").read_all()
    found = lake_tables.read(table_format, tmp_path / "t").select(wanted.schema.names)
    assert found.sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()


def test_a_born_time_that_the_libraries_have_no_number_for(run: Run, table_format: str, tmp_path: Path) -> None:
    """Such as of a producer that counts in microseconds: it stopped the job for ever."""
    born_ms = [T0, T0 * 1000]
    store = opened(small_options(tmp_path / "s"))
    for born in born_ms:
        block = bytearray(encode_put_block([Message("T", b"x")], "T", 0, born))
        store.put_one(Block(block, "T", 0, 1, BORN_HOST))
    dispatch_all(store)
    assert store.close()
    ran = run("archive", "--path", tmp_path / "s", "--to", tmp_path / "t", "--format", table_format)
    assert (ran.code, ran.result["rows"]) == (0, 2), ran.err
    found = lake_tables.read(table_format, tmp_path / "t")["bornTimestamp"].cast(pa.int64()).to_pylist()
    assert sorted(found) == [born * 1000 for born in born_ms]


def test_a_batch_that_fails_leaves_the_table_as_it_was(table_format: str, tmp_path: Path) -> None:
    """The error is the reader's, not that of the library that called it."""
    fill(tmp_path / "s")
    log = max((tmp_path / "s" / "commitlog").iterdir())
    position = log.read_bytes().index(b"body-0059")
    flip_bit(log, position)
    job = Job(table_format, tmp_path / "s", tmp_path / "t")
    assert job.next(20) == (20, True)
    with pytest.raises(DamagedStore, match=log.name):
        job.next(100)
    assert len(archived(table_format, tmp_path / "t")) == 20
    flip_bit(log, position)
    assert Job(table_format, tmp_path / "s", tmp_path / "t").next(100) == (40, False)
    assert archived(table_format, tmp_path / "t") == stored(tmp_path / "s")


@pytest.mark.parametrize(("tag", "first"), [("*", 0), ("b", 40)])
def test_a_batch_ends_by_the_bytes_that_were_read(
    table_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, first: int
) -> None:
    """Also after many small messages, and after messages that the tag does not select: 40, then 20 of 50,000 bytes."""
    store = opened(small_options(tmp_path / "s", commit_log_file_size=1 << 22, consume_queue_entries=500))
    for number in range(60):
        body = b"%04d" % number + b"x" * (50_000 if number >= 40 else 5)
        put(store, body, queue_id=number % 2, tag="ab"[number >= 40])
    dispatch_all(store)
    assert store.close()
    fill_tables(tmp_path / "s")
    monkeypatch.setattr("reput_client.arrow.directory_reading._CHUNK_BYTES", 1)
    monkeypatch.setattr("reput_client.arrow.directory_reading.BATCH_BYTES", 1)
    monkeypatch.setattr(copying_module, "BATCH_BYTES", 175_000)
    job = Job(table_format, tmp_path / "s", tmp_path / "t", path=str(tmp_path / "s"), subExpression=tag)
    batches = [job.next(1000)]
    while batches[-1][1]:
        batches.append(job.next(1000))
    assert batches[0] == (44 - first, True)
    assert max(rows for rows, _ in batches[1:]) <= 4
    every = read_arrow(tmp_path / "s", "T", columns=COLUMNS).read_all()
    assert archived(table_format, tmp_path / "t") == [row for row in places(every) if int(row[3][:4]) >= first]


def test_a_batch_of_a_broker_ends_by_the_bytes_that_were_read(
    new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues that it did not reach stay where they were."""
    broker = new_reput_broker()
    send(broker, "T", 30, queues=3)
    monkeypatch.setattr("reput_client.arrow.topic_reading._BATCH_BYTES", 1)
    monkeypatch.setattr(copying_module, "BATCH_BYTES", 1)
    job = Job("delta", tmp_path, tmp_path / "t", nameServer=broker.address)
    batches = [job.next()]
    while batches[-1][1]:
        batches.append(job.next())
    assert batches == [*[(1, True)] * 29, (1, False)]
    assert len(set(archived("delta", tmp_path / "t"))) == 30


def test_a_row_group_of_a_delta_table_is_small_if_messages_are_large(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library holds one in memory."""
    monkeypatch.setattr("reput_pipeline.lake.delta._ROW_GROUP_BYTES", 1000)
    Job("delta", root, tmp_path / "t").next(100)
    (path,) = (tmp_path / "t").glob("*.parquet")
    assert pq.ParquetFile(path).metadata.num_row_groups > 2


def test_another_job_that_commits_first_is_noticed(table_format: str, root: Path, tmp_path: Path) -> None:
    """Both loaded the same progress: the commit of the second one is rejected, and no message is there twice."""
    job, other = (Job(table_format, root, tmp_path / "t") for _ in range(2))
    job.before_commit(lambda: other.next(10))
    with pytest.raises(ProgressMoved, match=r"another job writes .* queue T/0 was committed up to its start, and now"):
        job.next(20)
    assert len(archived(table_format, tmp_path / "t")) == 10


def test_another_job_that_takes_over_is_noticed(table_format: str, root: Path, tmp_path: Path) -> None:
    job, other = (Job(table_format, root, tmp_path / "t") for _ in range(2))
    job.next(10)
    other.next(10)
    with pytest.raises(ProgressMoved, match="committed up to 5, and now is up to 10"):
        job.next(10)
    while other.next(10)[1]:
        pass
    assert archived(table_format, tmp_path / "t") == stored(root)


def test_commits_of_other_programs_are_no_reason_to_end(table_format: str, root: Path, tmp_path: Path) -> None:
    """Rows without messages of the topic are appended, while the job writes a batch."""
    job = Job(table_format, root, tmp_path / "t")
    job.next(20)

    def append_others() -> None:
        rows = pa.Table.from_pylist([{"topic": "other", "queueId": 9}], arrow_schema(["topic", "queueId"]))
        if table_format == "delta":
            from deltalake import write_deltalake

            write_deltalake(tmp_path / "t", rows, mode="append", schema_mode="merge")
        else:
            lake_tables.iceberg(tmp_path / "t").append(rows)

    job.before_commit(append_others)
    while job.next(20)[1]:
        pass
    rows = lake_tables.read(table_format, tmp_path / "t").filter(pa.compute.field("topic") == "T")
    assert places(rows) == stored(root)


def test_a_commit_whose_response_was_lost_is_not_repeated(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks like a conflict, and another program commits before the job looks at the table again."""
    job = Job("iceberg", root, tmp_path / "t")
    job.next(20)
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    commit = SqlCatalog.commit_table

    def losing(*given: Any) -> None:
        monkeypatch.undo()
        commit(*given)
        lake_tables.iceberg(tmp_path / "t").append(pa.Table.from_pylist([], arrow_schema(COLUMNS)))
        raise CommitFailedException("conflict")

    monkeypatch.setattr(SqlCatalog, "commit_table", losing)
    assert job.next(20) == (20, True)
    assert job.next(20) == (20, False)
    assert archived("iceberg", tmp_path / "t") == stored(root)


def test_two_jobs_of_different_topics_share_a_table(
    table_format: str, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path
) -> None:
    """Each has its own progress, also where their commits meet."""
    broker = new_reput_broker()
    send(broker, "a", 30)
    send(broker, "b", 30)
    jobs = [Job(table_format, tmp_path, tmp_path / "t", nameServer=broker.address, subscribe=topic) for topic in "ab"]
    jobs[0].next(10)
    jobs[1].before_commit(lambda: jobs[0].next(10))
    for job in reversed(jobs):
        while job.next(10)[1]:
            pass
    assert lake_tables.sums(with_broker(lake_tables.read(table_format, tmp_path / "t")))[:2] == (60, 60)


def send(broker: BackgroundBroker, topic: str, count: int, queues: int = 2) -> None:
    with Admin(broker.address) as admin, Producer(broker.address, group="p") as producer:
        admin.create_topic(topic, queues=queues)
        for number in range(count):
            producer.post(Message(topic, b"%d" % number), queue_id=number % queues)
        producer.flush()


def with_broker(rows: pa.Table) -> pa.Table:
    return rows.append_column("brokerName", pa.nulls(len(rows), pa.string()))


def test_progress_survives_the_expiry_of_snapshots_and_a_checkpoint(
    table_format: str, root: Path, tmp_path: Path
) -> None:
    Job(table_format, root, tmp_path / "t").next(20)
    if table_format == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(tmp_path / "t")
        table.optimize.compact()
        table.create_checkpoint()
        for path in (tmp_path / "t" / "_delta_log").glob("*.json"):
            if int(path.stem) < table.version():
                path.unlink()
    else:
        iceberg = lake_tables.iceberg(tmp_path / "t")
        iceberg.append(pa.Table.from_pylist([{"topic": "other"}], arrow_schema(["topic"])))
        first, last = iceberg.metadata.snapshots
        iceberg.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
        assert [snapshot.snapshot_id for snapshot in iceberg.refresh().metadata.snapshots] == [last.snapshot_id]
    job = Job(table_format, root, tmp_path / "t")
    assert sum(job.next(10)[0] for _ in range(6)) == MESSAGES - 20


@pytest.mark.parametrize("batches", [0, 1])
def test_an_iceberg_table_that_was_rolled_back_is_filled_again(root: Path, tmp_path: Path, batches: int) -> None:
    """Also if that was to before the first batch."""
    job = Job("iceberg", root, tmp_path / "t")
    table = lake_tables.iceberg(tmp_path / "t")
    table.append(pa.Table.from_pylist([], arrow_schema(COLUMNS)))
    for _ in range(batches):
        job.next(20)
    first = table.refresh().current_snapshot()
    job.next(20)
    table.refresh().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    assert Job("iceberg", root, tmp_path / "t").next(100) == (MESSAGES - 20 * batches, False)
    assert archived("iceberg", tmp_path / "t") == stored(root)


def test_columns_that_a_table_lacks_are_added_on_request(
    run: Run, table_format: str, root: Path, tmp_path: Path
) -> None:
    arguments = ("archive", "--path", root, "--to", tmp_path / "t", "--format", table_format)
    run(*arguments, "-o", "select=topic,queueId,queueOffset,body", "--batch-messages", 20, "--batches", 1)
    refused = run(*arguments, "-o", "select=topic,queueId,queueOffset,body,tags")
    assert refused.code == ExitCode.FAILED
    assert "it has no column tags; add them with --evolve" in refused.err
    fewer = run(*arguments, "-o", "select=body,topic,queueOffset", "--batch-messages", 20, "--batches", 1)
    assert (fewer.code, fewer.result["rows"]) == (0, 20), fewer.err
    added = run(*arguments, "-o", "select=topic,queueId,queueOffset,body,tags", "--evolve")
    assert (added.code, added.result["rows"]) == (0, 20), added.err
    rows = lake_tables.read(table_format, tmp_path / "t")
    assert rows.num_rows == MESSAGES
    assert rows["tags"].null_count == 40
    assert rows["queueId"].null_count == 20
    assert sorted(rows["body"].to_pylist()) == sorted(body for *_, body in stored(root))


def test_a_column_of_another_type_is_named(run: Run, table_format: str, root: Path, tmp_path: Path) -> None:
    other = pa.schema([("topic", pa.string()), ("body", pa.string())])
    open_table(table_format, TableOptions(str(tmp_path / "t"), other))
    refused = run(
        "archive", "--path", root, "--to", tmp_path / "t", "--format", table_format, "-o", "select=topic,body"
    )
    assert refused.code == ExitCode.FAILED
    assert "its column body is of type string, and that of the messages is binary" in refused.err


def test_a_table_takes_the_columns_that_it_was_created_with(
    run: Run, table_format: str, root: Path, tmp_path: Path
) -> None:
    """Also nested and small ones, as its own format describes them."""
    arguments = ("--path", root, "--to", tmp_path / "t", "--format", table_format, "--batch-messages", 20)
    for batches in (1, 2):
        kafka = ("-o", "columns=kafka", "-o", "includeHeaders=true", "--batches", batches)
        ran = run("archive", *arguments, *kafka)
        assert (ran.code, ran.result["rows"]) == (0, 20 * batches), ran.err
    headers = lake_tables.read(table_format, tmp_path / "t")["headers"].to_pylist()
    assert all({"key": "colour", "value": b"blue"} in row for row in headers)
    text = pa.string()
    nested = {
        "small": pa.int8(),
        "short": pa.int16(),
        "at": pa.timestamp("ms" if table_format == "iceberg" else "us"),
        "texts": pa.list_(text),
        "pair": pa.struct([("left", text), ("right", pa.int16())]),
        "maps": pa.map_(text, pa.list_(pa.struct([("inner", text)]))),
    }
    for _ in range(2):
        open_table(table_format, TableOptions(str(tmp_path / "n"), pa.schema(nested.items())))


def test_an_optional_column_of_an_iceberg_table_takes_one_that_always_has_a_value(tmp_path: Path) -> None:
    """Also within a column, whatever the ids, texts and order of its fields; the reverse is named."""
    text, number = pa.string(), pa.int32()
    where = str(tmp_path / "t")

    def schema(*, nullable: bool) -> pa.Schema:
        value = pa.field("value", text, nullable)
        fields = [pa.field("left", text, metadata={"doc": f"{nullable}"}), pa.field("right", number, nullable)]
        pair = pa.struct(fields if nullable else fields[::-1])
        return pa.schema([("map", pa.map_(text, value)), ("pair", pair), pa.field("key", text, nullable)])

    ours = schema(nullable=False)
    open_table("iceberg", TableOptions(where, schema(nullable=True)))
    table = open_table("iceberg", TableOptions(where, ours))
    table.load([], {})
    row = {"map": [("a", "b")], "pair": {"right": 1, "left": "x"}, "key": "k"}
    table.append(pa.Table.from_pylist([row], ours).to_reader(), Progress({}, {}, {}), 1)
    assert lake_tables.read("iceberg", tmp_path / "t").to_pylist() == [row]
    required = TableOptions(where, ours, name="reput.required")
    open_table("iceberg", required)
    for name, path in (("map", "map.value"), ("pair", "pair.right"), ("key", "key")):
        columns = [schema(nullable=each.name == name).field(each.name) for each in ours]
        with pytest.raises(SchemaMismatch, match=rf"its column {path} is required, .* messages is optional"):
            open_table("iceberg", replace(required, schema=pa.schema(columns)))


def test_a_topic_that_was_made_again_and_one_that_has_expired_are_named(
    run: Run, table_format: str, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path
) -> None:
    broker = new_reput_broker()
    send(broker, "orders", 10)
    arguments = ["archive", "--server", broker.address, "--topic", "orders", "--format", table_format]
    arguments += ["--to", str(tmp_path / "t")]
    assert run(*arguments).result["rows"] == 10
    with Admin(broker.address) as admin:
        admin.delete_topic("orders")
    send(broker, "orders", 30)
    remade = run(*arguments)
    assert remade.code == ExitCode.FAILED
    assert "its topic was deleted and created again" in remade.err


def test_messages_that_expired_before_they_were_read_are_named(
    run: Run, table_format: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("archive", "--path", root, "--to", tmp_path / "t", "--format", table_format)
    run(*arguments, "--batch-messages", 20, "--batches", 1)
    bounds = OfflineStore.bounds

    def expired(self: Any, queues: Any) -> Any:
        found = bounds(self, queues)
        return {queue: each._replace(low=17) if each.high else each for queue, each in found.items()}

    monkeypatch.setattr(OfflineStore, "bounds", expired)
    lost = run(*arguments)
    assert lost.code == ExitCode.FAILED
    assert "queue T/0: messages 10 to 16 are gone" in lost.err
    assert "failOnDataLoss=false" in lost.err
    went_on = run(*arguments, "-o", "failOnDataLoss=false")
    assert (went_on.code, went_on.result["rows"], went_on.result["lost"]) == (0, 2 * 13, 2 * 7), went_on.err
    for queue_id in range(2):
        assert went_on.err.count(f"queue T/{queue_id}: messages 10 to 16 are gone and not in the archive") == 1
    assert run(*arguments, "-o", "failOnDataLoss=false").result["lost"] == 0


def test_a_topic_is_followed_until_a_signal(
    run: Run, table_format: str, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path
) -> None:
    broker = new_reput_broker()
    send(broker, "orders", 10)

    def continues() -> None:
        wait_until(lambda: lake_tables.data_files(tmp_path / "t"))
        send(broker, "orders", 15)
        wait_until(lambda: committed() == 25)
        os.kill(os.getpid(), signal.SIGTERM)

    def committed() -> int:
        return int(lake_tables.read(table_format, tmp_path / "t").num_rows)

    other = threading.Thread(target=continues)
    other.start()
    arguments = ("--topic", "orders", "--to", tmp_path / "t", "--format", table_format, "--follow")
    ended = run("archive", "--server", broker.address, *arguments, "--every", "0.05")
    other.join()
    assert (ended.code, ended.result["rows"]) == (0, 25), ended.err
    assert "the table is consistent" in ended.err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_broker_continues_after_a_copy_of_its_directory(
    run: Run, table_format: str, new_reput_broker: Callable[..., BackgroundBroker], tmp_path: Path
) -> None:
    broker = new_reput_broker()
    send(broker, "orders", 10)
    wait_until(lambda: read_arrow(broker.data_dir, "orders").read_all().num_rows == 10)
    shutil.copytree(broker.data_dir, tmp_path / "copy")
    send(broker, "orders", 15)
    common = ("archive", "--topic", "orders", "--to", tmp_path / "t", "--format", table_format)
    copied = run(*common, "--path", tmp_path / "copy", "--as-broker", "broker-a")
    assert (copied.code, copied.result["rows"]) == (0, 10), copied.err
    other = run(*common, "--path", broker.data_dir, "--as-broker", "broker-a")
    assert f"is of broker-a at {tmp_path / 'copy'}, not of broker-a at {broker.data_dir}" in other.err
    live = run(*common, "--server", broker.address)
    assert (live.code, live.result["rows"]) == (0, 15), live.err
    rows = lake_tables.read(table_format, tmp_path / "t")
    assert lake_tables.sums(rows)[:2] == (25, 25)
    assert set(rows["brokerName"].to_pylist()) == {"broker-a"}
    for given, argument in (
        (("--server", broker.address, "--as-broker", "broker-a"), "--as-broker"),
        (("--path", tmp_path / "copy", "--as-broker", ""), "--as-broker"),
        (("--path", tmp_path / "copy"), "--to"),
    ):
        refused = run(*common, *given)
        assert (refused.code, refused.result["argument"]) == (ExitCode.USAGE, argument)
    assert f"is of broker-a at {broker.address}, not of {tmp_path / 'copy'}" in refused.err
    assert "give --as-broker" in refused.err


def test_the_messages_of_another_directory_are_refused(
    run: Run, table_format: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their offsets would count as copied. A table from before sources were noted continues, and notes its source."""
    shutil.copytree(root, tmp_path / "copy")
    arguments = ("archive", "--to", tmp_path / "t", "--format", table_format)
    with monkeypatch.context() as before:
        before.setattr(copying_module, "sources_of", lambda *_given: {})
        run(*arguments, "--path", root, "--batch-messages", 20, "--batches", 1)
    run(*arguments, "--path", root, "--batch-messages", 20, "--batches", 1)
    refused = run(*arguments, "--path", tmp_path / "copy")
    assert (refused.code, refused.result["argument"]) == (ExitCode.USAGE, "--to")
    assert f"of {root}, not of {tmp_path / 'copy'}; name another directory" in refused.err
    assert "give --same-source" in refused.err
    named = run(*arguments, "--path", root, "--as-broker", "broker-a", "--same-source")
    assert (named.code, named.result["argument"]) == (ExitCode.USAGE, "--to")
    assert len(archived(table_format, tmp_path / "t")) == 40
    moved = run(*arguments, "--path", tmp_path / "copy", "--same-source")
    assert (moved.code, moved.result["rows"]) == (0, 20), moved.err
    assert run(*arguments, "--path", tmp_path / "copy").code == 0
    assert run(*arguments, "--path", root).code == ExitCode.USAGE


def test_the_addresses_of_a_broker_are_those_of_the_last_commit(
    table_format: str,
    new_reput_broker: Callable[..., BackgroundBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a job continues after a move in steps, each with an address in common. The same topic may move at once."""
    broker = new_reput_broker()
    send(broker, "T", 30)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(copying_module, "sources_of", lambda *_: {("T", "broker-a"): "c.example:1"})
        Job(table_format, tmp_path, tmp_path / "t", nameServer=broker.address).next(10)
    for other in ("a.example:1", "b.example:1"):
        job = Job(table_format, tmp_path, tmp_path / "t", nameServer=f"{broker.address};{other}")
        job.next(10)
        assert job.table.load([], {}).sources == {("T", "broker-a"): f"{broker.address} {other}"}


def test_the_source_of_a_job_that_commits_first_is_noticed(table_format: str, root: Path, tmp_path: Path) -> None:
    """The commit of the second job is rejected, and its next attempt finds queues that have a broker."""
    job = Job(table_format, root, tmp_path / "t")
    other = Job(table_format, root, tmp_path / "t", as_broker="broker-a")
    job.before_commit(lambda: other.next(10))
    with pytest.raises(OtherSource, match=f"is of broker-a at {root}, not of {root}"):
        job.next(20)
    assert len(archived(table_format, tmp_path / "t")) == 10


def test_a_job_whose_progress_has_moved_leaves_no_source(table_format: str, root: Path, tmp_path: Path) -> None:
    """The rows are those of the other job, which could not continue."""
    shutil.copytree(root, tmp_path / "copy")
    other = Job(table_format, root, tmp_path / "t")
    other.next(10)
    job = Job(table_format, tmp_path / "copy", tmp_path / "t", same_source=True)
    job.before_commit(lambda: other.next(10))
    with pytest.raises(ProgressMoved):
        job.next(10)
    assert Job(table_format, root, tmp_path / "t").next(10) == (10, True)


def test_progress_between_the_sources_and_the_rows_of_a_delta_commit_is_noticed(root: Path, tmp_path: Path) -> None:
    """Sources are a commit of their own; the rows of a job that commits next to it are not copied again."""
    from deltalake import table as deltalake_table

    job, other = (Job("delta", root, tmp_path / "t") for _ in range(2))
    setting = deltalake_table.TableAlterer.set_table_properties

    def after_other(*given: Any, **more: Any) -> None:
        patch.undo()
        other.next(10)
        job.table._table.update_incremental()  # type: ignore[attr-defined]
        setting(*given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deltalake_table.TableAlterer, "set_table_properties", after_other)
        with pytest.raises(ProgressMoved):
            job.next(20)
    assert len(archived("delta", tmp_path / "t")) == 10


def test_old_versions_are_deleted(run: Run, table_format: str, root: Path, tmp_path: Path) -> None:
    arguments = ("archive", "--path", root, "--to", tmp_path / "t", "--format", table_format)
    run(*arguments, "--batch-messages", 10, "--batches", 5)
    left = tmp_path / "t" / "part-00000-left-by-a-killed-job.parquet"
    left.write_bytes(b"")
    os.utime(left, (1, 1))
    tidied = run(*arguments, "--keep", 1)
    assert tidied.code == 0, tidied.err
    assert left.exists() == (table_format == "iceberg")
    assert ("merged 6 files into 1" if table_format == "delta" else "removed 0 snapshots") in tidied.err
    assert archived(table_format, tmp_path / "t") == stored(root)
    job = Job(table_format, root, tmp_path / "t")
    if table_format == "iceberg":
        assert job.table.tidy(-60) == "removed 5 snapshots"
    assert Job(table_format, root, tmp_path / "t").next() == (0, False)


def test_versions_are_not_deleted_within_the_last_of_the_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library counts whole hours: those of the last half an hour of 1.5 were deleted."""
    kept: list[int] = []

    def vacuum(_table: object, hours: int, **_more: object) -> list[str]:
        kept.append(hours)
        return []

    monkeypatch.setattr("deltalake.DeltaTable.vacuum", vacuum)
    open_table("delta", TableOptions(str(tmp_path / "t"), arrow_schema(COLUMNS))).tidy(1.5 * 3600)
    assert kept == [2]


def test_an_iceberg_table_is_in_its_directory_whatever_its_name(run: Run, root: Path, tmp_path: Path) -> None:
    """The files were in a directory next to it, with %20 in its name for a space."""
    (tmp_path / "in").mkdir()
    place = tmp_path / "in" / "of a café"
    arguments = ("archive", "--path", root, "--format", "iceberg", "--to")
    for rows in (MESSAGES, 0):
        assert run(*arguments, place).result["rows"] == rows
    assert [*(tmp_path / "in").iterdir()] == [place]
    assert archived("iceberg", place) == stored(root)
    for letter in "#?%":
        refused = run(*arguments, tmp_path / "in" / f"a{letter}b")
        assert "take #, ? and % in its path for parts of a URL; name another directory" in refused.err
    assert [*(tmp_path / "in").iterdir()] == [place]


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("delta", "iceberg"):
        monkeypatch.delitem(sys.modules, f"reput_pipeline.lake.{name}", raising=False)
    for name in ("deltalake", "pyiceberg", "pyiceberg.catalog"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_libraries")
def test_a_missing_library_names_its_extra(run: Run, table_format: str, root: Path, tmp_path: Path) -> None:
    refused = run("archive", "--path", root, "--to", tmp_path / "t", "--format", table_format)
    assert refused.code == ExitCode.FAILED
    assert f"pip install ./client '.[{table_format}]'" in refused.err
    assert "spark" not in refused.err


@pytest.mark.parametrize(
    "source", [("--path", "nothing"), ("--server", "127.0.0.1:1"), ("--path", "s", "--topic", "other")], ids=str
)
def test_no_table_is_made_for_topics_that_do_not_exist(
    run: Run, table_format: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: tuple[str, ...]
) -> None:
    """The empty table then had the columns and partitions of the attempt."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").symlink_to(root)
    refused = run("archive", *source, "--to", tmp_path / "t", "--format", table_format)
    assert refused.code in (ExitCode.NOT_FOUND, ExitCode.CANNOT_CONNECT)
    assert not (tmp_path / "t").exists()


def test_a_table_that_cannot_be_opened_is_named(run: Run, table_format: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("x")
    used = run("archive", "--path", root, "--to", tmp_path, "--format", table_format)
    assert used.code == ExitCode.FAILED
    assert f"{tmp_path} cannot be opened: the directory is not empty" in used.err
    if table_format == "delta":
        away = ["--to", "s3://b/t", "--to-option", "AWS_ENDPOINT_URL=http://127.0.0.1:1"]
        away += ["--to-option", "AWS_ACCESS_KEY_ID=a", "--to-option", "AWS_SECRET_ACCESS_KEY=b"]
        away += ["--to-option", "AWS_REGION=x", "--to-option", "max_retries=0"]
    else:
        away = ["--to", "w", "--to-option", "uri=http://127.0.0.1:1"]
    refused = run("archive", "--path", root, "--format", table_format, *away)
    assert refused.code == ExitCode.FAILED
    assert "cannot be opened" in refused.err
    assert "127.0.0.1" in refused.err
    assert "\x1b" not in refused.err


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--format", "delta", "--file-messages", "7"], "--file-messages"),
        (["--format", "delta", "--table", "a.b"], "--table"),
        (["--format", "delta", "--master", "local[2]"], "--master"),
        (["--format", "delta", "--partition-by", "hour"], "--partition-by"),
        (["--format", "delta", "--partition-by", "tags,tags"], "--partition-by"),
        (["--format", "delta", "--partition-by", "tags", "-o", "select=topic,body"], "--partition-by"),
        (["--format", "delta", "--partition-by", "tags", "-o", "columns=kafka"], "--partition-by"),
        (["--format", "iceberg", "--partition-by", "tags"], "--partition-by"),
        (["--format", "iceberg", "--table", "orders"], "--table"),
        (["--evolve"], "--evolve"),
        (["--keep", "5"], "--keep"),
    ],
)
def test_arguments_of_another_format_are_refused(
    run: Run, root: Path, tmp_path: Path, given: list[str], named: str
) -> None:
    refused = run("archive", "--path", root, "--to", tmp_path / "t", *given)
    assert (refused.code, refused.result["argument"]) == (ExitCode.USAGE, named)
    assert not (tmp_path / "t").exists()


def test_a_commit_that_is_always_rejected_ends(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("delta", root, tmp_path / "t")

    def rejected(*_given: object) -> None:
        raise TableChanged("busy")

    monkeypatch.setattr(job.table, "append", rejected)
    with pytest.raises(Exception, match="prevented this one 10 times: busy"):
        job.next()


def test_a_delta_table_is_partitioned_on_request(run: Run, root: Path, tmp_path: Path) -> None:
    arguments = ("archive", "--path", root, "--to", tmp_path / "t", "--format", "delta")
    assert run(*arguments, "--partition-by", "tags").code == 0
    assert {path.name for path in (tmp_path / "t").glob("tags=*")} == {"tags=tag0", "tags=tag1", "tags=tag2"}
    assert archived("delta", tmp_path / "t") == stored(root)
    assert run(*arguments, "--partition-by", "tags").code == 0
    refused = run(*arguments, "--partition-by", "topic,tags")
    assert (refused.code, refused.result["argument"]) == (ExitCode.USAGE, "--partition-by")
    assert (
        f"{tmp_path / 't'} is partitioned by tags, not by topic,tags; name no columns, or another table" in refused.err
    )


def test_a_partitioned_iceberg_table_takes_the_messages(run: Run, root: Path, tmp_path: Path) -> None:
    """Also by day, which needs `pyiceberg-core`."""
    arguments = ("archive", "--path", root, "--to", tmp_path / "t", "--format", "iceberg")
    assert run(*arguments, "--batch-messages", 2, "--batches", 1).code == 0
    with lake_tables.iceberg(tmp_path / "t").update_spec() as spec:
        spec.add_identity("tags")
        spec.add_field("storeTimestamp", "day", "day")
    ran = run(*arguments, "--batch-messages", 30)
    assert (ran.code, ran.result["rows"]) == (0, MESSAGES - 2), ran.err
    assert archived("iceberg", tmp_path / "t") == stored(root)
    partitions = lake_tables.iceberg(tmp_path / "t").inspect.partitions()["partition"].to_pylist()
    assert {"tags": "tag0", "day": date(2023, 11, 14)} in partitions


def test_a_tag_that_is_too_long_for_a_directory(run: Run, table_format: str, tmp_path: Path) -> None:
    """A Delta table cannot take it, and the error names the message; files of an Iceberg table have other names."""
    fill(tmp_path / "s", tags=("a", "b", "ж" * 60))
    columns = ("-o", "select=tags,body")
    arguments = ("archive", "--path", tmp_path / "s", "--to", tmp_path / "t", "--format", table_format, *columns)
    if table_format == "iceberg":
        assert run(*arguments, "--batch-messages", 2, "--batches", 1).code == 0
        with lake_tables.iceberg(tmp_path / "t").update_spec() as spec:
            spec.add_identity("tags")
        assert run(*arguments).code == 0
        tags = lake_tables.read(table_format, tmp_path / "t")["tags"].to_pylist()
        assert (len(tags), tags.count("ж" * 60)) == (MESSAGES, MESSAGES // 3)
        assert "write.object-storage.enabled" not in lake_tables.iceberg(tmp_path / "t").properties
        return
    refused = run(*arguments, "--partition-by", "tags")
    assert refused.code == ExitCode.FAILED
    assert f"{tmp_path / 't'} cannot take message 1 of queue T/0: the table is partitioned by tags" in refused.err
    assert "name another table, which is not partitioned by tags" in refused.err
    assert not list((tmp_path / "t").rglob("*.parquet"))
    at_url = ("archive", "--path", tmp_path / "s", "--to", (tmp_path / "u").as_uri(), "--format", "delta", *columns)
    assert "cannot take message 1 of queue T/0" in run(*at_url, "--partition-by", "tags").err


def test_an_iceberg_table_of_a_rest_catalog(run: Run, root: Path, tmp_path: Path) -> None:
    """Conflicts are noticed as with the catalog in SQLite."""
    rest = import_module("support.rest_catalog")
    with rest.rest_catalog(tmp_path) as (uri, catalog):
        arguments = ["archive", "--path", str(root), "--format", "iceberg", "--table", "shop.orders"]
        arguments += ["--to", "here", "--to-option", f"uri={uri}"]
        ran = run(*arguments, "--batch-messages", 20, "--batches", 1)
        assert (ran.code, ran.result["rows"]) == (0, 20), ran.err
        schema = arrow_schema()
        options = parse_source_options({"path": str(root), "subscribe": "T"}, streaming=False)
        wanted = TableOptions("here", schema, name="shop.orders", settings={"uri": uri})
        copies = [Copying(open_table("iceberg", wanted), options, schema) for _ in range(2)]
        assert copies[0].next(10) == (10, True)
        assert copies[1].next(10) == (10, True)
        with pytest.raises(ProgressMoved):
            copies[0].next(10)
        assert run(*arguments).result["rows"] == 20
        assert places(catalog.load_table("shop.orders").scan().to_arrow()) == stored(root)
