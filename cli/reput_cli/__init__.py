"""The `reput` command."""
