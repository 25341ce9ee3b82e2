"""Encoding and decoding of frames, headers, commands and records. No I/O, no clock, no threads.

- `wire`: frames and headers
- `commands`: requests and answers
- `record`: the one binary form of a message
- `filter`: tag and SQL92 filters
- `kernel`: the compiled loops
"""
