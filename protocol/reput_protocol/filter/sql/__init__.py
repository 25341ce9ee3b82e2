"""SQL92 filters over the properties of messages (RocketMQ: SqlFilter, SelectorParser, filter.expression).

`SqlFilter.parse` is all that others use. The parser's library is loaded with the first expression, so that a program
without one never pays for it.

The language and its odd corners are RocketMQ's, so that an expression means the same to either broker; where one is
stricter here, `grammar.py` says so.
"""

from reput_protocol.filter.sql.sql_filter import SqlFilter

__all__ = ["SqlFilter"]
