"""The memory that this process may use: the machine's, or less in a control group (a container, a systemd unit)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

# Beyond memory.high the system takes the page cache back, as it does at memory.max.
_LIMITS = {"cgroup2": ("memory.max", "memory.high"), "cgroup": ("memory.limit_in_bytes",)}


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory or the lowest limit of this process's control groups (v1 and v2), if that is less.

    1 GiB if the system says neither.

    Args:
        root: where `/proc` and `/sys` are.
    """
    limits = list(_group_limits(root))
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(limits, default=1 << 30)


def _group_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the process's groups and of the groups that contain them."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except (OSError, ValueError):
        return
    # A line is "number:controllers:path"; version 2 has no controllers.
    paths = {kind: path for _, kind, path in (line.split(":", 2) for line in groups)}
    v1 = next((path for kinds, path in paths.items() if "memory" in kinds.split(",")), None)
    for line in mounts:
        fields = line.split()
        end = fields.index("-")
        kind, options = fields[end + 1], fields[-1].split(",")
        path = paths.get("") if kind == "cgroup2" else v1 if "memory" in options else None
        if kind in _LIMITS and path is not None:
            yield from _limits_below(root / fields[4].lstrip("/"), fields[3], path, _LIMITS[kind])


def _limits_below(mount: Path, mounted: str, path: str, names: tuple[str, ...]) -> Iterator[int]:
    """Yield the limits of the group at `path` and of its parents.

    A container's mount begins at its own group, `mounted`; a path outside of that is the host's name for it.
    """
    inside = PurePosixPath(path)
    relative = inside.relative_to(mounted) if inside.is_relative_to(mounted) else PurePosixPath()
    for group in (relative, *relative.parents):
        for name in names:
            try:
                yield int((mount / group / name).read_text())
            except (OSError, ValueError):  # no such file: the group at the top; "max": no limit
                continue
