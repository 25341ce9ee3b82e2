"""Sinks: records that are staged outside the log and published as one batch, once."""
