"""The producer: sends and posts messages, and has transactions, requests and replies."""
