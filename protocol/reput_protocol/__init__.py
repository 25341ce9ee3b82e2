"""Encoding and decoding of frames, headers, commands and records. No clock, no threads, and I/O only in `store`.

- `wire`: frames and headers
- `commands`: requests and answers
- `record`: the one binary form of a message
- `filter`: tag and SQL92 filters
- `kernel`: the compiled loops
- `store`: the files of a store directory, read-only
"""
