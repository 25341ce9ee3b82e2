"""Starting Spark: the session, Java, and the Python workers."""
