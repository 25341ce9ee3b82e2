"""What becomes of a message before it is put: its record, its place, and whether it is stored.

`send_records` makes records of what clients send, `retry_records` those of retry topics and dead letters, and
`send_redirects` decides where they are stored. `deduplicated_puts` stores a repeated message once: `deduplication`
recognises it, `message_content` compares contents. `fitted_properties` makes room for what the broker adds.
"""
