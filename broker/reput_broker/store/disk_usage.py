"""How full a disk is, as retention counts it (RocketMQ: UtilAll.getDiskPartitionSpaceUsedPercent)."""

from __future__ import annotations

import os
from pathlib import Path

UNREADABLE = -1.0


def disk_used_ratio(path: Path) -> float:
    """The used part of the file system that holds `path`: 0 to 1, in whole percent, rounded up. Blocks.

    What only the superuser may use counts neither as used nor as left. A directory that does not exist yet is looked
    for where it will be made. `UNREADABLE` if the system does not say.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        disk = os.statvfs(path)
    except OSError:
        return UNREADABLE
    used = disk.f_blocks - disk.f_bfree
    usable = used + disk.f_bavail
    return -(-used * 100 // usable) / 100 if usable else UNREADABLE
