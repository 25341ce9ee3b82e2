"""Writing rows of Spark to topics."""
