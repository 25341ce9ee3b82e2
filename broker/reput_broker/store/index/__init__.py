"""The index of message keys.

file: one index file. service: all files, and the dispatcher that fills them. query: messages by
key. `store_index`, above both the log and these, completes and flushes it for an open store.
"""
