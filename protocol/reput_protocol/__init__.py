"""Bytes to values and back: frames, headers, commands, records. No I/O, no clock, no threads."""
