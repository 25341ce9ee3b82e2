"""Fake brokers that know each other: masters, slaves with the same messages, and who is the master at the moment."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import BrokerData, ClusterInfo, QueueData, TopicRoute
from support.fakes import Answer, FakeBroker


class FakeCluster:
    """Brokers by name, each with members by number; all of them, and `names`, answer the same routes.

    A member is the master (`masters`), or else a slave with its number + 1 as its id. Members of a name share their
    messages and offsets at once. Topics have `queues` queues on each broker.

    Attributes:
        members: of each name.
        masters: by name: the number of the master, or None.
        names: answers routes only, and is never down.
        leading: members that are the master, which no route says yet.
        cut_off: members that hear nothing of the others: each names the master that is given here, or none, and of the
            other members none.
    """

    def __init__(self, members: dict[str, int], *, queues: int = 1) -> None:
        self._stack = ExitStack()
        self._queues = queues
        self.names = self._stack.enter_context(FakeBroker())
        self.masters: dict[str, int | None] = dict.fromkeys(members, 0)
        self.members: dict[str, list[FakeBroker]] = {}
        self.gone: set[str] = set()
        self.leading: set[FakeBroker] = set()
        self.cut_off: dict[FakeBroker, FakeBroker | None] = {}
        for name, count in members.items():
            group = [self._stack.enter_context(FakeBroker(queues=queues)) for _ in range(count)]
            for member in group:
                member.broker_name = name
                group[0].replicate_to(member)
            self.members[name] = group
        for fake in (self.names, *(member for group in self.members.values() for member in group)):
            fake.behave(RequestCode.GET_ROUTEINFO_BY_TOPIC, lambda *_, fake=fake: self._route(fake))
            fake.behave(RequestCode.GET_BROKER_CLUSTER_INFO, lambda *_, fake=fake: self._info(fake))
        self.promote()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def promote(self, **masters: int | None) -> None:
        """Set who is the master of brokers (`broker_a` means "broker-a"): a member by number, or none."""
        for name, number in masters.items():
            self.masters[name.replace("_", "-")] = number
        for name, group in self.members.items():
            for number, member in enumerate(group):
                member.is_slave = number != self.masters[name]

    def master(self, name: str) -> FakeBroker:
        """Return the master of a broker."""
        number = self.masters[name]
        assert number is not None, "it has none"
        return self.members[name][number]

    def _data(self, fake: FakeBroker) -> dict[str, BrokerData]:
        if fake in self.cut_off:
            master = self.cut_off[fake]
            known = {int(self._facts(fake)["brokerId"]): fake.address}
            if master is not None:
                known[0] = master.address
            return {fake.broker_name: BrokerData("c", fake.broker_name, known)}
        return {
            name: BrokerData("c", name, {self._id(name, number): member.address for number, member in enumerate(group)})
            for name, group in self.members.items()
            if name not in self.gone
        }

    def _id(self, name: str, number: int) -> int:
        return 0 if number == self.masters[name] else number + 1

    def _facts(self, fake: FakeBroker) -> dict[str, str | int]:
        for name, group in self.members.items():
            if fake in group:
                number = group.index(fake)
                own_id = 0 if fake in self.leading else self._id(name, number)
                return {"brokerName": name, "brokerId": own_id, "startId": f"{name}-{number}"}
        return {}

    def _route(self, fake: FakeBroker) -> Answer:
        data = self._data(fake)
        route = TopicRoute([QueueData(name, self._queues, self._queues, 6, 0) for name in data], [*data.values()])
        return Answer(ext=self._facts(fake), body=route.to_json())

    def _info(self, fake: FakeBroker) -> Answer:
        data = self._data(fake)
        return Answer(ext=self._facts(fake), body=ClusterInfo(data, {"c": [*data]}).to_json())
