"""The index of message keys.

file: one index file. service: all files, and the dispatcher that fills them. query: messages by
key. store_index: the index of an open store.
"""
