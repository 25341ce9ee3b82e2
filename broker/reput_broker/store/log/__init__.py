"""The CommitLog.

commit_log: append and read, creation of files ahead. mapped_file, mapped_file_queue: its files. pool: buffers for
appends. walk: verification by recovery. Deletion is in `retention`.
"""
