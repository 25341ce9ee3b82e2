"""Where the pages get their data: the broker that serves now, asked as its clients ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from reput_broker.observe.metrics import MetricsSources
from reput_broker.request import Response
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.commands.admin import GroupDescription, GroupSummary
from reput_protocol.commands.operation import ClientDescription
from reput_protocol.errors import BrokerError, ErrorCode
from reput_protocol.wire.header import HeaderType, Value

ROWS_MAX = 1000
"""Rows of one table; a search finds those beyond."""
QUEUES_A_TURN = 64
NAMES_A_TURN = 1024
"""Queues, and names that are only compared, after which other tasks run."""

T = TypeVar("T")


class InvalidQuery(Exception):
    """A parameter of a page is missing or invalid; the text says which, and what is valid."""


class Requests(Protocol):
    """Makes requests to the broker (see `LocalRequests`)."""

    async def ask(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> Response:
        """Return the answer, whatever its code."""

    async def ask_ok(self, code: int, ext: Mapping[str, Value], body: bytes = b"") -> Response:
        """Return the answer; raises BrokerError if the request is refused."""


class Header(Protocol):
    """The typed header of a request."""

    def to_ext(self, header_type: int) -> dict[str, Value]:
        """Return the fields for a header of this type."""


class Groups(Protocol):
    """Combines what is known of consumer groups (see `GroupOverviewProcessor`)."""

    async def summaries(self) -> list[GroupSummary]:
        """Return every group in short."""

    async def description(self, group: str, topic: str | None = None) -> GroupDescription:
        """Return one group, with all of its queues or those of a topic; raises Refusal if it does not exist."""


class Connections(Protocol):
    """Lists the connections of clients (see `OperationsProcessor`)."""

    async def connections(self) -> list[ClientDescription]:
        """Return all of them."""


class Serving(NamedTuple):
    """The parts of the present tenure that pages use."""

    requests: Requests
    groups: Groups
    clients: Connections


class Source:
    """What all pages read.

    Args:
        figures: the sources of the metrics.
        serving: returns the present tenure's parts, None while there are none.
        status: returns what /status shows of parts and roles.
    """

    def __init__(
        self,
        figures: MetricsSources,
        serving: Callable[[], Serving | None],
        status: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.figures = figures
        self.status = status
        self._serving = serving

    @property
    def serving(self) -> Serving:
        """The present tenure's parts; raises BrokerError (NOT_READY) while there are none."""
        serving = self._serving()
        if serving is None or self.figures.store is None:
            raise self._not_ready()
        return serving

    @property
    def store(self) -> MessageStore:
        """The store; raises like `serving`."""
        return self._there(self.figures.store)

    @property
    def topics(self) -> TopicConfigManager:
        """The topic table; raises like `serving`."""
        return self._there(self.figures.topics)

    @property
    def offsets(self) -> ConsumerOffsetManager:
        """The committed offsets; raises like `serving`."""
        return self._there(self.figures.offsets)

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Response:
        """Make a request that must succeed, and return its answer.

        Raises:
            BrokerError: it was refused.
        """
        return await self.serving.requests.ask_ok(code, _ext(header), body)

    async def ask_any(self, code: int, header: Header) -> Response:
        """Make a request and return its answer, whatever its code."""
        return await self.serving.requests.ask(code, _ext(header))

    def _there(self, part: T | None) -> T:
        if part is None:
            raise self._not_ready()
        return part

    def _not_ready(self) -> BrokerError:
        state = self.figures.health.state
        return BrokerError(
            ErrorCode.NOT_READY, f"the broker is {state}; this page shows its data once it serves"
        )


def _ext(header: Header | None) -> dict[str, Value]:
    return {} if header is None else header.to_ext(HeaderType.MSGPACK)


class Query:
    """The parameters of a page, checked."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str, *, size_max: int = 1024) -> str:
        """Return a text, "" if it is missing."""
        value = self._values.get(name, "")
        if not isinstance(value, str):
            raise InvalidQuery(f"{name} is not a text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidQuery(f"{name} has half of a character") from None
        if len(value) > size_max:
            raise InvalidQuery(f"{name} has {len(value)} characters, and at most {size_max} are accepted")
        return value.strip()

    def needed(self, name: str) -> str:
        """Return a text that is not empty."""
        value = self.text(name)
        if not value:
            raise InvalidQuery(f"{name} is missing")
        return value

    def number(self, name: str, default: int, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """Return a whole number within `[low, high]`."""
        value = self._values.get(name, "")
        if value == "":
            return default
        text = str(value)
        if isinstance(value, bool | float) or not text.lstrip("-").isdecimal() or not text.isascii():
            raise InvalidQuery(f"{name} is {text[:40]!r}, and a whole number is needed")
        number = int(text) if len(text) <= 20 else high + 1
        if not low <= number <= high:
            raise InvalidQuery(f"{name} is {text[:40]}, and must be within {low} and {high}")
        return number
