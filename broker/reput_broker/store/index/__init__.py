"""The index of message keys.

file: one index file. service: all files, the dispatcher that fills them, and their completion and flush for an open
store. query: messages by key.
"""
