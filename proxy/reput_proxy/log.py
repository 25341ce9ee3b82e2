"""The proxy's log: an event is a fixed phrase with facts, as in the broker's log.

The process that runs the proxy writes it.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any, Final

_logger: Final = logging.getLogger("reput_proxy")


def info(event: str, **facts: object) -> None:
    """Log what an operator may want to know."""
    _logger.info(event, extra={"facts": facts})


def warning(event: str, **facts: object) -> None:
    """Log what an operator should look at."""
    _logger.warning(event, extra={"facts": facts})


class WarningOnChange:
    """Logs a warning of something that is tried often, only when its error is another one than before.

    Args:
        event, facts: as those of `warning`.
    """

    def __init__(self, event: str, **facts: object) -> None:
        self._event = event
        self._facts = facts
        self._last: str | None = None

    def failed(self, error: Exception) -> None:
        """Log the error unless it is the last one."""
        if str(error) != self._last:
            self._last = str(error)
            warning(self._event, error=self._last, **self._facts)

    def succeeded(self) -> None:
        """Have the next error logged, whichever it is."""
        self._last = None


def error(event: str, failure: BaseException, **facts: object) -> None:
    """Log a defect, with its traceback."""
    _logger.error(event, exc_info=failure, extra={"facts": facts})


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str, str, dict[str, Any]], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        facts: dict[str, Any] = getattr(record, "facts", {})
        event = record.msg
        if record.name != _logger.name:
            event, facts = "library_warning", {"logger": record.name, "detail": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            facts = {**facts, "exception": "".join(traceback.format_exception(record.exc_info[1]))}
        self._write(record.levelname.lower(), event, facts)


def write_log(write: Callable[[str, str, dict[str, Any]], None]) -> None:
    """Have `write` called with the level, in lower case, the event and the facts of each event from now on.

    Warnings of libraries are events too.
    """
    logging.basicConfig(handlers=[_Handler(write)], level=logging.WARNING, force=True)
    _logger.setLevel(logging.INFO)
