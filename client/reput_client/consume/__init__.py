"""Consumers: readers that pull by offset, bulk readers, and in `group` the members of groups."""
