"""Whether a store directory may be written at all: asked before a start changes anything in it.

Files that a start opens anyway (of the log, the queues, the index) show it then. The others are looked at here, and
the directories in which files will have to be made.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from reput_broker.store.errors import StoreNotWritable
from reput_broker.store.options import StoreOptions

_EFFECTIVE = os.access in os.supports_effective_ids


def refuse_unwritable(options: StoreOptions) -> None:
    """Refuse a directory of which the broker cannot write what it has to.

    Of several directories of the log one is enough: files are made where they can be.

    Raises:
        StoreNotWritable: naming what cannot be written. Nothing was changed.
    """
    root = options.data_dir
    names = ("checkpoint", "abort", "deletedTopics", "config")
    for path in (root, *(root / name for name in names), options.consume_queue_dir, options.index_dir):
        _refuse(path)
    directories = options.writable_log_dirs
    if not any(is_writable(path) for path in directories):
        _refuse(directories[0])


def is_writable(path: Path) -> bool:
    """Whether a file or a directory may be written, or is not there."""
    return not path.exists() or os.access(path, os.W_OK, effective_ids=_EFFECTIVE)


def _refuse(path: Path) -> None:
    if not is_writable(path):
        is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        raise StoreNotWritable(path, errno.EROFS if is_read_only else errno.EACCES)
