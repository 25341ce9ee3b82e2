"""Building a broker from its parts.

`served_tenure` runs the broker in one role. `start` opens the `storage` (the content of the data directory); `master`
or `slave` builds what runs over it, from the `parts` of both (`puts`, request processors) and, for a master, `delay`
and `retry`. `open_files` divides the limit of open files.
"""
