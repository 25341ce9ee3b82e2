"""The message store: synchronous, no trio, no sockets."""
