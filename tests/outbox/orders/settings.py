"""Settings of the program with orders; its processes get broker and database by the environment."""

from __future__ import annotations

import os

SECRET_KEY = "soak"
INSTALLED_APPS = ["reput_client.tasks.django", "outbox.orders"]
USE_TZ = True
_name = os.environ["ORDERS_DATABASE"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ["ORDERS_POSTGRESQL"],
        "NAME": _name,
        "USER": "postgres",
    }
    if "ORDERS_POSTGRESQL" in os.environ
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": _name,
        "OPTIONS": {"timeout": 60, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"},
    }
}
TASKS = {
    "default": {
        "BACKEND": "reput_client.tasks.django.ReputBackend",
        "OPTIONS": {"server": os.environ["ORDERS_SERVER"], "outbox": "default"},
    }
}
