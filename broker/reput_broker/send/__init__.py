"""What becomes of a message before it is put: its record, its place, and whether it is stored.

`send_records` makes records of what clients send and decides where they are stored, `retry_records` those of retry
topics and dead letters. `deduplication` stores a repeated message once.
"""
