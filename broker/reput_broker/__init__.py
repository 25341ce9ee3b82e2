"""The Reput broker."""
