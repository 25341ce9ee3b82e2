"""The producer: sending, posting, transactions, requests and replies; and the batch writer of the Spark sink."""
