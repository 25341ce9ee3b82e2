"""Bytes to values and back: frames, headers, commands, records. No I/O, no clock, no threads.

`wire/` has frames and headers, `commands/` the requests and answers, `record/` the one form of a message, `filter/`
what a consumer wants of a topic, and `kernel/` the compiled loops. The files here are what all of them share.
"""
