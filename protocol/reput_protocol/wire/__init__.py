"""Frames and what they carry: cutting and joining frames, the three header types."""
