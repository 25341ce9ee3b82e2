"""What all parts of the store need: they import it, and it imports none of them.

- `options` are given to a store, `results` and `errors` come from it; `stats` count what it does
- `running_flags` says whether puts are accepted, and why not
- `block` is what is appended at once, `dispatch` what a step hands to queues and index
- `checkpoint` says how far everything is synced, `deleted_topics` which queues are gone
- `file_io`, `file_names` and `checked_path` are for its files, `memory_limit` for their pages
"""
