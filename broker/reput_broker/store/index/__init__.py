"""The index of message keys.

file: one index file. service: all files, and the dispatcher that fills them. query: messages by
key. store_index: completion, dispatch and flush for an open store.
"""
