"""How a record says which parked one it was made of: in PREPARED_TRANSACTION_OFFSET.

Only committed transactions have one there otherwise, and they name a half message. The field is 0 in all other
records, so that a parked record which lies at the very beginning of the log is named by -1.
"""

from __future__ import annotations

from typing import Final

from reput_protocol.record_view import RecordView

_AT_ZERO: Final = -1


def origin_field(physical_offset: int) -> int:
    """Return what the field holds in records made of the one at this log offset."""
    return physical_offset or _AT_ZERO


def origin_of(record: RecordView) -> int | None:
    """Return the log offset of the record that this one names; None if it names none that lies before it."""
    field = record.prepared_transaction_offset
    if field == 0:
        return None
    origin = 0 if field == _AT_ZERO else field
    return origin if 0 <= origin < record.physical_offset else None
