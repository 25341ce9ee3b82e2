"""Deleting expired files (RocketMQ: CleanCommitLogService and CleanConsumeQueueService together).

One round every `store.clean_interval`: remove the queue files of deleted topics, check the hour and the disk, delete
files of the log one by one, then files of queues and index. Every step blocks (removing a file of 1 GiB can take a
second), so it runs in a worker thread, one at a time. Its effects, such as refusing puts, are applied on the event
loop. `store.retention` has the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog
import trio

from reput_broker.config.sections import StoreConfig
from reput_broker.config.value_types import hours_of_day
from reput_broker.store.base.errors import FlushFailed
from reput_broker.store.retention import DeletedFile, DiskLevel, RetentionRules
from reput_broker.tenure.core import Core, RoleDuties
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)
Result = TypeVar("Result")


def rules_of(config: StoreConfig) -> RetentionRules:
    """Return the rules of the current configuration."""
    return RetentionRules(
        file_reserved_ms=round(config.file_reserved_time * 1000),
        delete_when=hours_of_day(config.delete_when),
        disk_max_used_ratio=config.disk_max_used_ratio,
        disk_clean_forcibly_ratio=config.disk_clean_forcibly_ratio,
        disk_warning_ratio=config.disk_warning_ratio,
        clean_file_forcibly=config.clean_file_forcibly,
        delete_files_batch=config.delete_files_batch,
        destroy_forcibly_ms=round(config.destroy_forcibly_interval * 1000),
        redelete_hanged_ms=round(config.redelete_hanged_interval * 1000),
    )


class CleanFilesService:
    """Deletes expired files, and refuses puts while the disk is too full."""

    def __init__(self, core: Core, role: RoleDuties) -> None:
        self._store = core.store
        self._config = core.config.store
        self._counters = core.counters
        self._figures = core.sources.disk
        self._on_disk = core.store_health.note_disk
        self._before_delete = role.before_delete
        self._limiter = trio.CapacityLimiter(1)
        self._wanted = trio.Event()
        self._warned: tuple[DiskLevel, str] | None = None
        self._log, self._queues = self._store.cleaners(
            lambda: rules_of(self._config),
            monotonic_ms=core.surroundings.monotonic_ms,
            local_hour=core.surroundings.local_hour,
            disk_usage=core.surroundings.disk_usage,
            needed_from=role.needed_from,
            waiting_from=role.waiting_from,
        )

    def delete_now(self) -> None:
        """Delete expired files now and in the next rounds, at any hour."""
        self._log.delete_manually()
        self._wanted.set()

    def clean_now(self) -> None:
        """Run the next round now."""
        self._wanted.set()

    async def run(self) -> None:
        """Clean until cancelled."""
        await self._wait(self._config.clean_delay)
        while True:
            await self.clean()
            await self._wait(self._config.clean_interval)

    async def _wait(self, interval_s: float) -> None:
        with trio.move_on_after(interval_s):
            await self._wanted.wait()
        self._wanted = trio.Event()

    async def clean(self) -> None:
        """Run one round. Failures are logged and retried in the next one."""
        try:
            while await self._step(self._store.remove_deleted):
                pass
            await self._clean_log()
            await self._clean_what_follows()
        except FlushFailed as error:
            self._store.stop_writing(str(error))
            log.error("cleaning_failed", detail=str(error), hint="check the disk, then restart the broker")
        except (ReputError, OSError) as error:
            log.error("cleaning_failed", detail=str(error), hint="the files stay; the next round retries")

    async def _clean_log(self) -> None:
        deleted: list[DeletedFile] = []
        try:
            due = await self._step(self._log.look)
            self._apply_disk()
            if due:
                await self._before_delete()
            while due and (file := await self._step(self._log.delete_next)) is not None:
                self._note(file, deleted)
                self._apply_disk()
                await trio.sleep(self._config.delete_files_interval)
            hanged = await self._step(self._log.retry_hanged)
            if hanged is not None:
                self._note(hanged, deleted)
        finally:
            self._apply_disk()
            self._report(deleted)
        self._warn(relieved=bool(deleted) or self._log.disk.level is DiskLevel.OK)

    async def _clean_what_follows(self) -> None:
        deleted: dict[str, int] = {}
        if not await self._step(self._queues.look):
            return
        while (step := await self._step(self._queues.step)) is not None:
            if step.deleted:
                deleted[step.part] = deleted.get(step.part, 0) + step.deleted
                self._counters.segments_deleted[step.part, "time"] += step.deleted
                self._counters.deleted_bytes[step.part] += step.size
                await trio.sleep(self._config.delete_files_interval)
        if deleted:
            log.info("files_deleted", **deleted, min_offset=self._store.min_physical_offset)

    async def _step(self, step: Callable[[], Result]) -> Result:
        return await trio.to_thread.run_sync(step, limiter=self._limiter)

    def _note(self, file: DeletedFile, deleted: list[DeletedFile]) -> None:
        deleted.append(file)
        self._counters.segments_deleted["commitlog", file.reason] += 1
        self._counters.deleted_bytes["commitlog"] += file.size

    def _apply_disk(self) -> None:
        disk = self._log.disk
        self._figures.level = disk.level
        self._store.refuse_for_disk(disk.refusal)
        self._on_disk(disk.refusal)

    def _report(self, deleted: list[DeletedFile]) -> None:
        if not deleted:
            return
        early = sum(file.reason == "disk" for file in deleted)
        facts = {"commitlog": len(deleted), "size_bytes": sum(file.size for file in deleted)}
        if early:
            log.warning(
                "files_deleted_before_their_time",
                **facts,
                before_their_time=early,
                min_offset=self._store.min_physical_offset,
                hint="the disk is too full; give it more space or shorten store.file_reserved_time",
            )
        else:
            log.info("files_deleted", **facts, min_offset=self._store.min_physical_offset)

    def _warn(self, *, relieved: bool) -> None:
        """Log that the disk is too full and nothing could be deleted: once, until that or its cause changes."""
        disk = self._log.disk
        trouble = None if relieved else (disk.level, self._why_nothing_was_deleted())
        if trouble is not None and trouble != self._warned:
            log.warning("disk_not_relieved", disk_level=disk.level, used_ratio=disk.used_ratio, hint=trouble[1])
        self._warned = trouble

    def _why_nothing_was_deleted(self) -> str:
        hanged = self._log.hanged
        if hanged is not None:
            return f"{hanged.path.name} is still being read; it is deleted when its readers have released it"
        if self._log.is_unwritable:
            return "the oldest file of the log is in a directory that cannot be written; delete it by hand"
        if self._log.is_held_back:
            return (
                "the oldest file of the log is the last one, has not been dispatched yet, or is needed "
                "for a batch of a sink that is not published completely; free disk space"
            )
        return "no file of the log is past its time; free disk space, or shorten store.file_reserved_time"
