"""Messages sent again and sent back: deduplication, retry topics, dead letters."""
