"""Deletion of expired files: `clean_service`. `store.retention` has the rules."""
