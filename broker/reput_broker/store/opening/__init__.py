"""Opening a store directory: its lock, what is checked first, and recovery."""
