"""Replies to requests between clients."""
