"""Consumers: members of a group, and readers that pull by offset."""
