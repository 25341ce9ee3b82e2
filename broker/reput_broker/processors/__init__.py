"""Request processors, one file per command family.

Sends: `put`, `send` (`send_records` encodes, `send_redirects` redirects), `put_once` (deduplicates both), `send_back`,
`reply`, `transaction`, `delay`. Reads: `pull` (`long_polling` holds pulls, `filter_check`), `fetch`, `cold_reads` (for
both), `query`, `offset`. Clients and groups: `client`, `lock`, `group_*`. Topics and the broker: `topic`, `route`,
`admin`. `topic_access` and `group_access` find what a request names and refuse what is not permitted.
"""
