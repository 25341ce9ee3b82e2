"""The job `rebuild`: rebuild queues and index of a store directory from its log.

One task for each file of the log writes the units of queues, without a shuffle. Meanwhile this process makes the key
index, whose entries form chains. New files are next to the old ones until they are complete (`tools/rebuild.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import click

from reput_broker.store.base.dispatch import DeletedTopics
from reput_broker.store.base.errors import ForeignFile
from reput_broker.tools.index_raw import index_sizes
from reput_broker.tools.rebuild import (
    Derived,
    DerivedFactory,
    IndexRebuild,
    QueuesInParts,
    hand_out,
    refuse_other_delays,
    refuse_other_queues,
    write_units,
)
from reput_broker.tools.rebuild import rebuild as rebuild_files
from reput_broker.tools.report import no_progress
from reput_broker.tools.verify import Verification
from reput_broker.tools.verify_parts import Directory
from reput_pipeline.jobs import audit
from reput_pipeline.jobs.directories import directory_arguments, locked
from reput_pipeline.jobs.run import ArgumentError, JobFailed, JobRun, Outcome, in_process_job, main
from reput_protocol.exit_codes import ExitCode
from reput_protocol.store.layout import StoreLayout

_KINDS: dict[str, DerivedFactory] = {"queues": QueuesInParts, "index": IndexRebuild}
_SIZES = "--index-slots and --index-entries; RocketMQ's are 5000000 and 20000000"


@in_process_job
@directory_arguments
@click.option("--queues", is_flag=True, help="The ConsumeQueues. Without --queues and --index: both.")
@click.option("--index", is_flag=True, help="The key index.")
def command(run: JobRun, directory: Directory, queues: bool, index: bool) -> Outcome:
    """Rebuild the ConsumeQueues and the key index in DIR from the log, and replace the existing ones.

    The log is verified first and must have no holes. File sizes are those of the existing files. Without existing
    files, give --consume-queue-entries unless it is RocketMQ's 300000, and --index-slots and --index-entries: without
    these only the queues are rebuilt, and the exit code is 8.
    """
    not_made: dict[str, str] = {}
    wanted = [name for name, chosen in (("queues", queues), ("index", index)) if chosen] or list(_KINDS)
    with locked(directory, to_write=True) as lock:
        layout = StoreLayout(directory.root, directory.commit_log_dirs, directory.geometry)
        if "index" in wanted and index_sizes(layout) is None:
            if index:
                raise ArgumentError(
                    "--index", f"no file in {layout.index_dir} has its numbers of slots and entries; give {_SIZES}"
                )
            wanted.remove("index")
            not_made["index"] = f"no file has its numbers of slots and entries; give {_SIZES}"
            run.note(f"index: not rebuilt; {not_made['index']}")
        try:
            if "queues" in wanted:
                refuse_other_queues(directory.root)
            verification, _ = audit.audit(run, directory, "checking the log")
            _refuse_damage(verification)
            if "queues" in wanted:
                refuse_other_delays(verification)
            lock.acquire()
            words = rebuild_files(
                verification.layout,
                verification.log.kept_end,
                [_KINDS[name] for name in wanted],
                delay_levels_ms=verification.delay_levels_ms,
                fill=partial(_fill, run, verification),
            )
        except ForeignFile as error:
            raise JobFailed(f"{directory.root} cannot be rebuilt: {error}") from None
    made = dict(zip(wanted, words, strict=True))
    for name, text in made.items():
        run.note(f"{name}: {text}")
    return Outcome(
        {
            "directory": str(directory.root),
            "made": made,
            "not_made": not_made,
            "records": verification.report.figures["records"],
            "damaged_records_kept": len(verification.log.damages),
        },
        ExitCode.PARTIAL if not_made else ExitCode.DONE,
    )


def _refuse_damage(verification: Verification) -> None:
    """Refuse a log whose damage hides messages, as `reput store rebuild` does."""
    faults = verification.report.faults
    if verification.log.holes:
        first = verification.log.holes[0]
        what = f"{first.file.path} at byte {first.position}: {first.reason}"
    else:
        fault = next((fault for fault in faults if fault.kind in ("log", "order")), None)
        if fault is None:
            return
        what = str(fault)
    raise JobFailed(
        f"the log is damaged, nothing was changed: {what}; reput store repair {verification.root} shows a repair",
        code=ExitCode.DAMAGE,
    )


def _fill(
    run: JobRun, verification: Verification, layout: StoreLayout, made: Sequence[Derived], deleted: DeletedTopics
) -> None:
    """Write the units in tasks, everything else in this process."""
    end, levels = verification.log.kept_end, verification.delay_levels_ms
    here = [derived for derived in made if not isinstance(derived, QueuesInParts)]
    errors: list[BaseException] = []

    def rebuild_index() -> None:
        try:
            hand_out(layout, end, here, deleted, levels, no_progress)
        except BaseException as error:
            errors.append(error)

    index_thread = threading.Thread(target=rebuild_index, name="reput-index")
    if here:
        index_thread.start()
    try:
        for derived in made:
            if isinstance(derived, QueuesInParts):
                parts = derived.parts(end, levels)
                again = derived.put_together(run.each("queues", parts, write_units))
                if again:
                    run.each("queues that start again", [part._replace(only=again) for part in parts], write_units)
    finally:
        if here:
            index_thread.join()
    if errors:
        raise errors[0]


if __name__ == "__main__":
    main("rebuild")
