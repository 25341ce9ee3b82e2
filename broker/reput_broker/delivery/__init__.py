"""What makes a log a message broker: who is handed which messages and when, and what the broker puts itself."""
