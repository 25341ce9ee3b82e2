"""Bugs to plant (filled in below)."""

BUGS = {}
