"""Making the next files of log and index ahead, so that puts do not wait (RocketMQ: AllocateMappedFileService)."""

from __future__ import annotations

import structlog
import trio

from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError

log = structlog.get_logger(__name__)

_RETRY_INTERVAL_S = 1.0
_UNLOCK_AFTER_S = 6.0  # (RocketMQ: CommitLog, unlockMappedFile)


class AllocateService:
    """Makes what the store requests: log files when one is full enough, index files when dispatch needs them."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._wanted = trio.Event()
        self._filled = trio.Event()
        store.when_file_wanted(self._want)
        if store.file_refusal is not None:  # the file that the start found takes no appends
            self._want()

    def _want(self) -> None:
        self._wanted.set()

    async def run(self) -> None:
        """Make files until cancelled. Failures are retried, and each is logged once.

        Puts that need the file are refused meanwhile.
        """
        logged = ""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if self._store.has_files_to_unlock:
                self._filled.set()
            try:
                while self._store.should_prepare_next_file():
                    await trio.to_thread.run_sync(self._store.prepare_next_file)
            except (ReputError, OSError) as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("next_file_not_made", detail=logged, hint="the broker retries")
                await trio.sleep(_RETRY_INTERVAL_S)
                self._want()
            else:
                logged = ""
                if self._store.file_refusal is not None:  # puts are refused, whatever file there is
                    await trio.sleep(_RETRY_INTERVAL_S)
                    self._want()

    async def unlock_full_files(self) -> None:
        """Unlock files that warm-up has locked into memory, some seconds after they are full."""
        while True:
            await self._filled.wait()
            await trio.sleep(_UNLOCK_AFTER_S)
            self._filled = trio.Event()
            await trio.to_thread.run_sync(self._store.unlock_full_files)
