"""The CommitLog.

commit_log: append and read. mapped_file, mapped_file_queue: its files. allocate, file_maker:
creation of files. pool: buffers for appends. walk: verification by recovery. memory_pages,
open_mappings: limits of memory and descriptors. Deletion is in `cleaners`.
"""
