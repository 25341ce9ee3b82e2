"""What becomes of a sent message before it is put: its record, its place, whether it is stored; returned messages.

`send_redirects` decides where a sent message is stored, from the records of `send_records`; `claimed_origins` checks
where a message is from that a client sends to a retry topic itself. `put_once` stores a repeated message once:
`deduplication` recognises it, `message_content` compares contents. `send_back` takes messages that a consumer returns,
`retry_records` makes their records, for retry topics and dead letters, and `send_back_deduplication` recognises
repeated returns. `fitted_properties` makes room for what the broker adds.
"""
