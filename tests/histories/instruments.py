"""What a member's client asks of the broker, written down: offsets read and committed, locks, messages given back; and
what becomes of its queues: which it is to have, takes, gives up and lets go.

Wraps the client's own functions in this process. A commit that travels with a pull has no separate answer.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from histories.history import Recorder
from histories.terms import LOCK_RENEWED_S, LOCK_TRUSTED_S, Body


def shorten_lock_times() -> None:
    """Renew and trust locks in times that fit how long the broker's locks last here."""
    from reput_client.consume.group import handover

    handover.RENEW_INTERVAL_S = LOCK_RENEWED_S  # type: ignore[misc]
    handover.TRUSTED_S = LOCK_TRUSTED_S  # type: ignore[misc]


def install(recorder: Recorder, group: str) -> None:
    """Write down what every consumer of this process asks for."""
    _offsets(recorder, group)
    _pulls(recorder, group)
    _locks(recorder, group)
    _queues(recorder, group)
    _giving_back(recorder, group)


def _offsets(recorder: Recorder, group: str) -> None:
    from reput_client.consume.group.commits import OffsetsAtBroker

    read, write = OffsetsAtBroker.read, OffsetsAtBroker.write

    async def noted_read(self: OffsetsAtBroker, queue: Any, slave: Any) -> int | None:
        if slave is not None:  # it may not have the last commits
            return await read(self, queue, slave)
        place = {"group": group, "topic": queue.topic, "queue": queue.queue_id}
        asked = recorder.note("ask-offset", **place)
        offset = await read(self, queue, slave)
        recorder.note("offset", asked=asked, offset=offset, **place)
        return offset

    async def noted_write(self: OffsetsAtBroker, queue: Any, offset: int, **options: Any) -> None:
        place = {"group": group, "topic": queue.topic, "queue": queue.queue_id, "offset": offset}
        asked = recorder.note("commit", **place)
        await write(self, queue, offset, **options)
        recorder.note("committed", asked=asked, **place)

    OffsetsAtBroker.read = noted_read  # type: ignore[method-assign]
    OffsetsAtBroker.write = noted_write  # type: ignore[method-assign]


def _pulls(recorder: Recorder, group: str) -> None:
    from reput_client.consume.group import fetcher
    from reput_client.consume.pull import pull_ext

    def noted(pulled_by: str, topic: str, queue_id: int, *rest: Any, **options: Any) -> Any:
        if options.get("commit_offset") is not None:
            recorder.note("commit", group=group, topic=topic, queue=queue_id, offset=options["commit_offset"])
        return pull_ext(pulled_by, topic, queue_id, *rest, **options)

    patch.object(fetcher, "pull_ext", noted).start()


def _locks(recorder: Recorder, group: str) -> None:
    from reput_client.consume.group.handover import QueueLocks
    from reput_client.consume.group.membership import Membership

    lock, unlock, leave = QueueLocks.lock, QueueLocks.unlock, Membership.leave

    async def noted_lock(self: QueueLocks, queues: Any) -> Any:
        queues = list(queues)
        asked = recorder.note("lock", group=group, queues=_names(queues))
        locked = await lock(self, queues)
        recorder.note("locked", group=group, queues=_names(locked.until), asked=asked)
        return locked

    async def noted_unlock(self: QueueLocks, queues: Any, timeout_s: float | None = None) -> None:
        queues = list(queues)
        recorder.note("unlock", group=group, queues=_names(queues))
        await unlock(self, queues, timeout_s)

    async def noted_leave(self: Membership, timeout_s: float) -> None:
        recorder.note("leave", group=group)
        await leave(self, timeout_s)

    QueueLocks.lock, QueueLocks.unlock = noted_lock, noted_unlock  # type: ignore[method-assign]
    Membership.leave = noted_leave  # type: ignore[method-assign]


def _queues(recorder: Recorder, group: str) -> None:
    from reput_client.consume.group.fetcher import Fetcher
    from reput_client.consume.group.handover import Handover

    add, follow = Fetcher.add, Handover.follow
    begin_leaving, let_go = Handover._begin_leaving, Handover.let_go
    wanted: dict[Handover, set[Any]] = {}

    def place(assigned: Any) -> dict[str, Any]:
        return {"group": group, "topic": assigned.queue.topic, "queue": assigned.queue.queue_id}

    def noted_follow(self: Handover, assignment: Any) -> None:
        before = wanted.get(self, set())
        queues = assignment.queues | {queue for queue in before if queue.topic in assignment.unknown}
        if queues != before:
            wanted[self] = queues
            recorder.note("wanted", group=group, queues=_names(sorted(queues)))
        follow(self, assignment)

    def noted_add(self: Fetcher, assigned: Any) -> None:
        recorder.note("taken", **place(assigned))
        add(self, assigned)

    def noted_begin_leaving(self: Handover, assigned: Any) -> None:
        recorder.note("given-up", **place(assigned))
        begin_leaving(self, assigned)

    async def noted_let_go(self: Handover, queues: Any, *rest: Any, **options: Any) -> None:
        queues = list(queues)
        for assigned in queues:
            recorder.note("let-go", position=assigned.progress.position, **place(assigned))
        await let_go(self, queues, *rest, **options)

    Fetcher.add, Handover.follow = noted_add, noted_follow  # type: ignore[method-assign]
    Handover._begin_leaving, Handover.let_go = noted_begin_leaving, noted_let_go  # type: ignore[method-assign]


def _names(queues: Any) -> list[list[Any]]:
    return [[queue.topic, queue.queue_id] for queue in queues]


def _giving_back(recorder: Recorder, group: str) -> None:
    from reput_client.consume.group import failures
    from reput_client.consume.send_back import send_back

    async def noted(session: Any, message: Any, **options: Any) -> None:
        body = Body.of(message.body)
        facts = {
            "group": group,
            "topic": options["queue"].topic,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "uid": body.uid,
            "attempt": message.reconsume_times,
            "level": options.get("delay_level", 0),
        }
        asked = recorder.note("back", **facts)
        try:
            await send_back(session, message, **options)
        except Exception as error:
            recorder.note("back-failed", asked=asked, error=repr(error), **facts)
            raise
        recorder.note("backed", asked=asked, **facts)

    patch.object(failures, "send_back", noted).start()
