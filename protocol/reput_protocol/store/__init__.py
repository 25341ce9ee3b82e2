"""The files of a store directory, read-only and without a broker: for tools, the client's Arrow readers and Spark's.

The only I/O of this package: nothing is locked, created or written.

- `files`: names of files and directories, stretches of zeros
- `layout`: which files a directory has, and their sizes
- `unit`, `unit_files`: the entries of queues
- `log_reader`: the records of the log, and damage
"""
