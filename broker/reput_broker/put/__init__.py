"""The way into the log: the put lock, the appender, what waits for a sync or commit, and the services of the log."""
