"""A Django shop whose orders are confirmed by a task, with an outbox (docs/django.md).

reput serve --data-dir /tmp/shop-broker
cd examples/django_shop
python manage.py migrate
python manage.py reput_worker --concurrency 4
python manage.py runserver
curl -d product=lamp http://127.0.0.1:8000/orders/
curl http://127.0.0.1:8000/orders/1/
"""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webshop.settings")
    execute_from_command_line(sys.argv)
