"""Starting Spark: its Java (`java`), the session, and the Python workers."""
