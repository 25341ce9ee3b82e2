"""Opening a store directory.

start: the sequence of steps, and the removal of what a master does not have. judgement: decides whether and how to
start, finds the end of the log, and compares records with queue entries. foreign_files: refuses what is not supported.
lock: ownership of the directory. directory_swap: replacement of a derived directory.
"""
