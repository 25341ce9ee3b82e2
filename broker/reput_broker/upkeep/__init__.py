"""Deletion of expired files: `clean_service`. The services that make, sync and dispatch files are in `put`."""
