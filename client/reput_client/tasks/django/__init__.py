"""Django's tasks on Reput: a backend, its worker, and an outbox (docs/django.md).

    INSTALLED_APPS = [..., "reput_client.tasks.django"]
    TASKS = {
        "default": {
            "BACKEND": "reput_client.tasks.django.ReputBackend",
            "QUEUES": ["default", "mails"],
            "OPTIONS": {"server": "127.0.0.1:10911", "outbox": "default"},
        }
    }

It is for `django.tasks` of Django 6, and for the package `django-tasks` with Django 5.2.
"""

from __future__ import annotations

from reput_client.tasks.django.backend import ReputBackend

__all__ = ["ReputBackend"]
