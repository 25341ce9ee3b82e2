"""Reput and Spark: the data source `reput`, and what its jobs are built on.

Nothing is imported here: Spark imports this package in every worker, and a program may want only a part of it.
"""
