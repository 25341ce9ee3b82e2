"""Repeated and returned messages.

`deduplication` recognises messages that a producer sends again, `message_content` compares their
contents. `retry_records` makes the records of messages that a consumer returns, for retry topics
and dead letters; `send_back_deduplication` recognises repeated returns.
"""
