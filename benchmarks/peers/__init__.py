"""Reput and other brokers side by side: each on this machine, driven through the client that Python programs use."""
