"""Settings of the Django project of the tests; its processes get the broker and the database by the environment."""

from __future__ import annotations

import os

SECRET_KEY = "tests"
INSTALLED_APPS = ["reput_client.tasks.django"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("TEST_DATABASE", ":memory:"),
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
USE_TZ = True
TASKS = {
    "default": {
        "BACKEND": "reput_client.tasks.django.ReputBackend",
        "QUEUES": ["default", "mails"],
        "OPTIONS": {
            "server": os.environ.get("TEST_SERVER", "127.0.0.1:1"),
            "name": os.environ.get("TEST_NAME", "django"),
            **({"outbox": "default"} if "TEST_OUTBOX" in os.environ else {}),
        },
    }
}
