"""Messages that a consumer returns.

`feature` takes them, and `send_back_deduplication` recognises repeated returns. `claimed_origins` checks where a
message is from that a client sends to a retry topic itself. `replay` sends dead letters again.
"""
