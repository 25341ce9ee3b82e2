"""Handlers of one consumer in several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

from reput_client.group.hands import Hands
from reput_client.received import ReceivedMessage

_LOOK_ROUND_S = 0.5


def run_in_threads(
    take: Callable[[float], ReceivedMessage | None],
    is_over: Callable[[], bool],
    handle: Callable[[ReceivedMessage], None],
    hands: Hands,
) -> None:
    """Take messages and handle them, in a thread for each of the hands, until it is over or `handle` raises.

    Waits for all of them.

    Each of them takes a message, one at a time, and handles it: a slow handler holds up nobody while a thread is free.

    Raises:
        BaseException: the first that `handle` or `take` raised, or what interrupted the calling thread.
    """
    gate = threading.Lock()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        slots = hands.slots
        try:
            while True:
                with gate:
                    # Another's handler may fail while no message comes; a bounded wait notices that.
                    message = None
                    while message is None and not failures and not is_over():
                        message = take(_LOOK_ROUND_S)
                if message is None:
                    return
                slots[number] = message
                handle(message)
                slots[number] = None
        except BaseException as error:
            failures.append(error)

    started = [
        threading.Thread(target=work, name=f"reput-handler-{n}", args=(n,)) for n in range(hands.count)
    ]
    try:
        for thread in started:
            thread.start()
        for thread in started:
            # Python calls signal handlers in the main thread. Where another thread got the signal, as it may when the
            # process was stopped, the main thread only notices when it comes back from its wait.
            while thread.is_alive():
                thread.join(_LOOK_ROUND_S)
    except BaseException as error:
        failures.append(error)
        for thread in started:
            if thread.ident is not None:
                thread.join()
    if failures:
        raise failures[0]
