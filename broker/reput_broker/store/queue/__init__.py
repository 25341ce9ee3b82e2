"""ConsumeQueues: the entries that say where the messages of each queue lie in the log."""
