"""Task frameworks whose queues are Reput's topics: `celery`, for Celery and Kombu, `django` and `taskiq`."""
