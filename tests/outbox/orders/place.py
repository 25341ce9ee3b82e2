"""`python place.py NAME`: place orders until killed, each with its task in one transaction; roll some back.

What is rolled back is written to a file first, so that a judge knows it.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from pathlib import Path

import django
from django.db import Error, connection, transaction

PAUSE_S = 0.002


def main(name: str) -> None:
    from outbox.orders.jobs import ship
    from outbox.orders.models import Order

    with Path(os.environ["ORDERS_ROLLED_BACK"], name).open("a") as rolled_back:
        for number in itertools.count():
            reference = f"{name}-{number}"
            try:
                with transaction.atomic():
                    Order.objects.create(reference=reference)
                    ship.enqueue(reference)
                    if random.random() < 0.1:
                        rolled_back.write(f"{reference}\n")
                        rolled_back.flush()
                        transaction.set_rollback(True)
            except Error:  # the connection was cut, before or after the commit: the table says which
                connection.close()
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    django.setup()
    main(sys.argv[1])
