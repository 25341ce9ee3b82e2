"""SQL92 filters over message properties (RocketMQ: SqlFilter, SelectorParser, filter.expression).

`SqlFilter.parse` is the interface. The parser's library is imported with the first expression, so programs without one
do not pay for it.

The language and its peculiarities are RocketMQ's, so that an expression means the same to both brokers; `grammar.py`
lists where this one is stricter.
"""

from reput_protocol.filter.sql.sql_filter import SqlFilter

__all__ = ["SqlFilter"]
