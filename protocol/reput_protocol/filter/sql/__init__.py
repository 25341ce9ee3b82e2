"""SQL92 filters over message properties, as RocketMQ's (SqlFilter, SelectorParser, filter.expression).

`SqlFilter.parse` is the interface. The parser's library is imported with the first expression.
"""

from reput_protocol.filter.sql.sql_filter import SqlFilter

__all__ = ["SqlFilter"]
