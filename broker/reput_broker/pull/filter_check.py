"""From an expression to a filter, and CheckClientConfig (46).

(RocketMQ: ClientManageProcessor.checkClientConfig, FilterFactory.)
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Final

import trio

from reput_broker.config.sections import FiltersConfig
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_protocol.codes import ExpressionType, RequestCode, ResponseCode
from reput_protocol.commands.group import CheckClientBody
from reput_protocol.errors import ErrorCode, FilterSyntaxError
from reput_protocol.filter.sql import SqlFilter
from reput_protocol.filter.tags import MessageFilter, TagFilter

_TAG: Final = ExpressionType.TAG.value
_COMPILED_AT_ONCE_MAX: Final = 256
"""Longer expressions are compiled in steps; one of this length takes a millisecond or two."""


class FilterCheck(Processor):
    """Creates the filters that this broker supports.

    Invariant: the SQL92 expressions in use, by waiting pulls for example, have at most `filters.sql_characters_max`
    characters together.
    """

    def __init__(self, config: FiltersConfig) -> None:
        self._config = config
        self._in_use: weakref.WeakSet[SqlFilter] = weakref.WeakSet()
        self._characters = 0

    @serves(RequestCode.CHECK_CLIENT_CONFIG)
    async def check_client_config(self, request: Request) -> Response:
        """Check a subscription before its consumer starts. A refusal keeps the consumer from starting."""
        subscription = request.content(CheckClientBody).subscription
        if self.takes_long(subscription.expression_type, subscription.sub_string):
            await self.prepare(subscription.sub_string)
        self.filter_of(subscription.expression_type, subscription.sub_string)
        return Response()

    def takes_long(self, expression_type: str | None, expression: str | None) -> bool:
        """Tell whether `filter_of` would compile a long expression, and so delay other clients."""
        return (
            expression_type == ExpressionType.SQL92
            and expression is not None
            and len(expression) > _COMPILED_AT_ONCE_MAX
            and self._config.sql
            and not SqlFilter.is_known(expression)
        )

    async def prepare(self, expression: str) -> None:
        """Compile an SQL92 expression in steps between which other tasks run; `filter_of` then finds the result."""
        with suppress(FilterSyntaxError):
            for _ in SqlFilter.parsing(expression):
                await trio.lowlevel.checkpoint()

    def filter_of(self, expression_type: str | None, expression: str | None) -> MessageFilter | None:
        """Return the filter of an expression, None if it matches every message.

        Args:
            expression_type: `TAG` (also None and the empty text) or `SQL92`.
            expression: the text; for tags None, an empty text and `*` match everything.

        Raises:
            FilterSyntaxError: it cannot be parsed, or its type is unknown.
            Refusal: SQL92 is turned off, or too much of it is in use.
        """
        if expression_type is None or expression_type == _TAG or not expression_type:
            tag_filter = TagFilter.parse(expression)
            return None if tag_filter.matches_all else tag_filter
        if not self._config.sql:
            raise Refusal(
                ErrorCode.UNSUPPORTED_REQUEST,
                f"this broker does not filter messages by {expression_type[:40]}, only by TAG; "
                "set its option filters.sql = true",
                response_code=ResponseCode.SYSTEM_ERROR,
            )
        if expression_type != ExpressionType.SQL92:
            raise FilterSyntaxError(
                f"filters of type {expression_type[:40]!r} are unknown; TAG and SQL92 are served", 0
            )
        sql_filter = SqlFilter.parse(expression or "")
        if sql_filter not in self._in_use:
            self._use(sql_filter)
        return sql_filter

    def filter_of_subscription(
        self, expression_type: str | None, expression: str | None
    ) -> MessageFilter | None:
        """As `filter_of`, for an expression that came with a heartbeat, which could not refuse it.

        Raises:
            Refusal: for every reason; a bad expression under the code FILTER_DATA_NOT_EXIST, as in RocketMQ.
        """
        try:
            return self.filter_of(expression_type, expression)
        except FilterSyntaxError as error:
            raise Refusal(
                ErrorCode.FILTER_SYNTAX, str(error), response_code=ResponseCode.FILTER_DATA_NOT_EXIST
            ) from None

    def _use(self, sql_filter: SqlFilter) -> None:
        size = len(sql_filter.expression)
        if self._characters + size > self._config.sql_characters_max:
            raise Refusal(
                ErrorCode.BUSY,
                f"SQL92 expressions of {self._characters} characters are in use; use shorter ones, or raise "
                "filters.sql_characters_max",
            )
        self._in_use.add(sql_filter)
        self._characters += size
        weakref.finalize(sql_filter, self._no_longer_used, size).atexit = False

    def _no_longer_used(self, size: int) -> None:
        self._characters -= size
