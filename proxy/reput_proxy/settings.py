"""Settings of topics and groups, as the brokers have them for a user."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from reput_client.errors import BrokerNotFound
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.group import SubscriptionGroupConfig, SubscriptionGroupHeader
from reput_protocol.commands.topic import GetTopicConfigHeader, TopicConfig
from reput_protocol.errors import BrokerError, GroupNotFound, PermissionDenied, ReputError, TopicNotFound
from reput_protocol.wire.header import HeaderType

T = TypeVar("T")

_KNOWN_S: Final = 10.0
"""How long settings of topics and groups are believed."""
_KNOWN_MAX: Final = 10_000
_TRY_S: Final = 1.0
"""How long one of several brokers may take: clients do not wait for one that hangs until their own deadlines."""


class Known(Generic[T]):
    """Answers of brokers, each kept for a short time; concurrent questions for one name share a request.

    If no broker can be asked then, because it is away, or a name server, the last answer counts for a further time. One
    that there is no such name, None, does not.
    """

    def __init__(self, ask: Callable[[str], Awaitable[T | None]]) -> None:
        self._ask = ask
        self._answers: OrderedDict[str, tuple[float, asyncio.Future[T | None]]] = OrderedDict()

    async def get(self, name: str) -> T | None:
        """Return what `ask` returns for `name`, or has returned a short time ago; raises what it raises."""
        loop = asyncio.get_running_loop()
        until, answer = self._answers.get(name, (0.0, None))
        if answer is None or loop.time() >= until:
            answer = asyncio.ensure_future(self._ask_again(name, answer))
            answer.add_done_callback(lambda done: self._forget_failure(name, done))
            self._answers[name] = loop.time() + _KNOWN_S, answer
            self._answers.move_to_end(name)
            if len(self._answers) > _KNOWN_MAX:
                self._answers.popitem(last=False)
        return answer.result() if answer.done() else await asyncio.shield(answer)

    async def _ask_again(self, name: str, last: asyncio.Future[T | None] | None) -> T | None:
        try:
            return await self._ask(name)
        except ReputError as error:
            found = None if last is None or not last.done() or last.exception() else last.result()
            if found is None or (isinstance(error, BrokerError) and not error.retryable):
                raise
            return found

    def _forget_failure(self, name: str, done: asyncio.Future[T | None]) -> None:
        if done.cancelled() or done.exception() is not None:
            known = self._answers.get(name)
            if known is not None and known[1] is done:
                del self._answers[name]


def settings_of_topics(session: Session) -> Known[TopicConfig]:
    """Return the settings of topics; None for one that does not exist yet, or that the user may not read."""

    async def ask(topic: str) -> TopicConfig | None:
        try:
            route = await session.route(topic, session.deadline(None))
        except TopicNotFound:
            return None
        return await _first(
            session,
            RequestCode.GET_TOPIC_CONFIG,
            GetTopicConfigHeader(topic),
            f"settings of {topic}",
            TopicConfig.from_json,
            route.brokers,
            missing=(TopicNotFound, PermissionDenied),
        )

    return Known(ask)


def settings_of_groups(session: Session) -> Known[SubscriptionGroupConfig]:
    """Return the settings of groups; None for one that does not exist yet.

    Asking for one that the user may not read raises `PermissionDenied`: whether a group consumes in order must not be
    guessed.
    """

    async def ask(group: str) -> SubscriptionGroupConfig | None:
        return await _first(
            session,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            SubscriptionGroupHeader(group),
            f"settings of {group}",
            SubscriptionGroupConfig.from_json,
            await session.masters(session.deadline(None)),
            missing=(GroupNotFound,),
        )

    return Known(ask)


async def _first(
    session: Session,
    code: RequestCode,
    header: CommandHeader,
    what: str,
    parse: Callable[[bytes], T],
    brokers: Iterable[str],
    *,
    missing: tuple[type[ReputError], ...],
) -> T | None:
    """Return the first answer of a broker that has what is asked for; None if all say that they have not.

    Args:
        missing: the errors that say so.

    Raises:
        ReputError: a broker has not answered, and no other has it.
    """
    failure: ReputError | None = None
    names = [*brokers]
    for name in names:
        address = session.brokers.masters.get(name)
        if address is None:
            failure = failure or BrokerNotFound(name, "")
            continue
        try:
            ext = header.to_ext(HeaderType.MSGPACK)
            deadline = session.deadline(None if name == names[-1] else _TRY_S)
            call = await session.ask_ok(code, ext, what=what, address=address, deadline=deadline)
        except missing:
            continue
        except ReputError as error:
            session.check_open()
            failure = failure or error
        else:
            return parse(bytes(call.body))
    if failure is not None:
        raise failure
    return None
