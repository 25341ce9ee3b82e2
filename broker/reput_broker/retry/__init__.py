"""Messages that a consumer returns.

`feature` takes them, and sends dead letters again; `send_back_deduplication` recognises repeated returns.
`claimed_origins` checks where a message is from that a client sends to a retry topic itself. `expired_messages` buries
messages whose time to live is over.
"""
