"""Building a broker from its parts, for one tenure after the other.

`running_tenure` runs the broker in one role: it opens the `storage` (the content of the data directory), then builds
a `master` or a slave. Both have the `parts` that every role has, over one `Core`. `live_config` changes options of a
running broker, and `open_files` divides the limit of open files. `proxy_process` runs the gRPC proxy, and starts a
process again when it ends.
"""
