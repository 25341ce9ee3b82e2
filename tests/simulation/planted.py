"""Bugs to plant in replication and election, so that the judges can prove that they would notice them.

Each function changes the process of one simulation before it begins. None of this is reachable from the product.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from reput_broker.put.progress import PendingRequest
from reput_broker.remoting.request import PutAck
from support import planted_bugs

_FAILOVERS: Final = {"lose-master": 6, "partition": 1, "stall-broker": 1}


@dataclass(frozen=True)
class Bug(planted_bugs.Bug):
    """One bug: by which rules it is to be caught, what has to happen for that, and within how many seeds.

    Attributes:
        scene: what follows the random faults, see `scenes`.
    """

    rules: tuple[str, ...]
    weights: dict[str, int] = field(default_factory=lambda: dict(_FAILOVERS))
    scene: str = "nothing"
    has_pool: bool = False
    seeds: int = 20


def acknowledged_before_the_copy() -> None:
    """a put counts as replicated as soon as the master has it"""
    from reput_broker.put.progress import LogProgress

    real = LogProgress.answer_when

    def hasty(self: LogProgress, level: PutAck, end_offset: int, put: PendingRequest) -> None:
        self.replicated.advance(end_offset)
        real(self, level, end_offset, put)

    LogProgress.answer_when = hasty  # type: ignore[method-assign]


def shorter_log_promoted() -> None:
    """a member that is not in sync becomes the master"""
    from reput_broker.ha.election.candidacy import Candidacy

    real = Candidacy.why_not

    def hasty(self: Candidacy, record: Any) -> str | None:
        return None if record.leader is None and record.epoch else real(self, record)

    Candidacy.why_not = hasty  # type: ignore[method-assign]
    Candidacy.why_behind = lambda *_: None  # type: ignore[method-assign]


def no_fence() -> None:
    """a master accepts and acknowledges after its lease, until the engine tells it that there is another"""
    from reput_broker.put.put_lock import Fence

    Fence.expiry = lambda self: self._ended  # type: ignore[method-assign]
    Fence.left_s = property(lambda _: 1.0)  # type: ignore[assignment]


def truncation_forgotten() -> None:
    """a member whose log differs from the new master's keeps it and goes on copying"""
    from reput_broker.ha import client, epochs

    real = epochs.decide

    def forgetful(own: Any, master: Any) -> Any:
        decision = real(own, master)
        return epochs.Follow() if isinstance(decision, epochs.TruncateTo) else decision

    client.decide = forgetful  # type: ignore[attr-defined]


def old_pop_positions() -> None:
    """a new master begins to pop at the offsets that it has copied"""
    from reput_broker.compose import storage

    storage.recover_positions = lambda *_: None  # type: ignore[attr-defined]


def buffers_forgotten() -> None:
    """what waits for everything put so far does not wait for what is in a buffer of the pool"""
    from reput_broker.store.message_store import MessageStore

    MessageStore.wrote_offset = MessageStore.max_physical_offset  # type: ignore[method-assign]


def restored_engine_believed() -> None:
    """a member believes what the engine says, and cuts its log as the master that it names says"""
    from reput_broker.ha.election.elector import Elector
    from reput_broker.ha.election.mastership import Mastership
    from reput_broker.ha.election.member_file import SeenFile

    async def leaves(self: Mastership) -> None:
        pass

    Elector.confirmed = lambda *_: 0  # type: ignore[method-assign]
    SeenFile.record = property(lambda _: (0, 0))  # type: ignore[assignment,method-assign]
    SeenFile.note_record = lambda *_: False  # type: ignore[method-assign]
    Mastership.put_back = leaves  # type: ignore[method-assign]


def stays_where_it_is() -> None:
    """a client asks only the address that it is connected to who leads"""
    from reput_client.transport.routing import RouteSearch

    def none(self: RouteSearch) -> None:
        return None

    RouteSearch.next_guide = none  # type: ignore[method-assign]


def level_not_repeated() -> None:
    """a producer that deduplicates does not repeat a send whose level was not reached"""
    from reput_client.produce import link, producer, puts

    def careless(*arguments: Any, **options: Any) -> Any:
        return puts.unknown_after(*arguments, **{**options, "deduplicates": False})

    for module in (link, producer):
        module.unknown_after = careless  # type: ignore[attr-defined]


def changes_answered_at_once() -> None:
    """a master answers commits and changes of tables before the in-sync set has them"""
    from reput_broker.ha.election.in_sync_set import TableCopies

    TableCopies._counts = property(lambda _: False)  # type: ignore[method-assign,assignment]


BUGS: Final = planted_bugs.table_of(
    (
        Bug(acknowledged_before_the_copy, ("replicated lost",)),
        Bug(shorter_log_promoted, ("replicated lost", "taken back")),
        Bug(no_fence, ("stale master",), {"cut-off-engine": 6, "loss": 1}),
        Bug(truncation_forgotten, ("logs differ", "taken back", "replicated lost")),
        Bug(old_pop_positions, ("popped again",), {}, "late-tables"),
        Bug(buffers_forgotten, ("popped again",), {"resets": 1}, has_pool=True),
        Bug(stays_where_it_is, ("stranded",), {}, "isolated-master"),
        Bug(level_not_repeated, ("not repeated",), {"cut-off-slaves": 1}),
        Bug(changes_answered_at_once, ("offset went back",), {"lose-master": 6, "join": 3, "leave": 2}),
        Bug(restored_engine_believed, ("replicated lost", "taken back"), {}, "restored-engine"),
    )
)
