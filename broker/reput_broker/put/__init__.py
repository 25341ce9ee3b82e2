"""The way into the log: the put lock, waiting puts, and what the broker puts itself."""
