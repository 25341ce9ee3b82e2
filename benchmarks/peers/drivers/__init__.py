"""Drivers, one file for each client; each uses the client as its documentation advises."""
