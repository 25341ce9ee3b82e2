"""What a broker shows of itself: counters and metrics, health, the log, and the HTTP pages."""
