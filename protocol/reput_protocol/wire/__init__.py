"""Frames, and the three types of headers."""
