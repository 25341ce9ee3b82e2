"""What all parts of the store need: they import it, and it imports none of them.

- `options` are given to a store; `results` has what is put, what comes of it, and counters; `errors` come from it
- `running_flags` says whether puts are accepted, and why not
- `dispatch` is what a step hands to queues and index, and which queues are gone
- `checkpoint` says how far everything is synced
- `file_io` is for its files
"""
