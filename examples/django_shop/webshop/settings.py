"""Settings for trying the shop; `SHOP_SERVER` and `SHOP_DATABASE` name another broker and another SQLite file."""

from __future__ import annotations

import os

SECRET_KEY = "not for production"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "webshop.urls"
INSTALLED_APPS = ["reput_client.tasks.django", "webshop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite3"),
        # Several processes write: each waits for the others.
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
TASKS = {
    "default": {
        "BACKEND": "reput_client.tasks.django.ReputBackend",
        "QUEUES": ["default"],
        "OPTIONS": {"server": os.environ.get("SHOP_SERVER", "127.0.0.1:10911"), "outbox": "default"},
    }
}
