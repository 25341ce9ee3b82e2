"""What the bundled client reads from a store: every message, and every one that it reports as damaged.

A start does not read old files. Whoever pulls from them meets their damage, and must neither be given anything else as
good nor be kept from what is sound.
"""

from __future__ import annotations

from collections.abc import Sequence

from crash.checker import Violation
from faults.made import Made, Place, try_open
from faults.workload import abandon
from reput_broker.store.base.results import GetStatus
from reput_broker.store.message_store import MessageStore
from reput_client.consume.pull import Pulled, PulledMessages
from reput_client.errors import DamagedMessage
from reput_client.received import ReceivedMessage
from support.stores import PLENTY

MESSAGES_A_PULL = 7


def pulled(store: MessageStore, topic: str, queue_id: int) -> dict[int, bytes | None]:
    """Every message of a queue as the client hands it out: queue offset to body, None for a damaged one."""
    found: dict[int, bytes | None] = {}
    offset = store.min_offset_in_queue(topic, queue_id)
    while True:
        result = store.get_message(topic, queue_id, offset, MESSAGES_A_PULL, 1 << 24, limits=PLENTY)
        if result.status is not GetStatus.FOUND:
            return found
        data = store.read_extents(result.extents, cold=result.cold)
        asked = Pulled(topic, queue_id, offset, result.next_begin_offset)
        for message in PulledMessages(topic, data, pulled=asked):
            assert message.queue_offset not in found
            found[message.queue_offset] = _content(message)
        offset = result.next_begin_offset


def _content(message: ReceivedMessage) -> bytes | None:
    try:
        assert message.tag is not None or message.tag is None  # looked at, as an application does
        return message.body
    except DamagedMessage:
        return None


def check_readers(
    made: Made, may: Sequence[Place], *, must: Sequence[Place] = (), noticed: list[Place] | None = None
) -> list[Violation]:
    """What is wrong with what the client hands out.

    Args:
        made: the directory.
        may: these records may be called damaged, every other has to come as it was put.
        must: of those, these have to be called damaged.
        noticed: those that are called damaged are added here.
    """
    store, error = try_open(made)
    if store is None:
        return [Violation("starts", f"{type(error).__name__}: {error}")]
    found: list[Violation] = []
    try:
        for queue in {place.queue for place in made.places}:
            places = [place for place in made.places if place.queue == queue]
            bodies = pulled(store, *queue)
            if list(bodies) != list(range(len(places))):
                found.append(Violation("all are there", f"{queue} has messages {list(bodies)}"))
                continue
            for place, body in zip(places, bodies.values(), strict=True):
                if body is None and place in may:
                    if noticed is not None:
                        noticed.append(place)
                elif place in must:
                    found.append(Violation("noticed", f"{queue}: damage at {place.start} was not"))
                elif body != place.body:
                    what = "called damaged" if body is None else "changed"
                    found.append(Violation("byte-equal", f"{queue}: the record at {place.start} is {what}"))
    except Exception as error:
        found.append(Violation("serves", f"{type(error).__name__}: {error}"))
    finally:
        abandon(store)
    return found
