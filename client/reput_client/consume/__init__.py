"""Consumers: group members, readers that pull by offset, and bulk readers."""
