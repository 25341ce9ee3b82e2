"""Clients, one file each: how a Python program sends and reads with it, as its own documents advise."""
