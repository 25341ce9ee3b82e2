"""Building a broker from its parts.

`start` opens the `storage` (the content of the data directory), `parts` builds what runs over it: `puts`, `delay`,
`retry`, and the request processors. `open_files` divides the limit of open files.
"""
