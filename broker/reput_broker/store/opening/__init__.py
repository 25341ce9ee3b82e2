"""Opening a store directory.

start: the sequence of steps, and the removal of what a master does not have. parts: what it works on. judgement:
decides whether and how to start, and compares records with queue entries. log_end: finds the end of the log.
foreign_files: refuses what is not supported. lock, abort_marker: ownership of the directory. directory_swap:
replacement of a derived directory.
"""
