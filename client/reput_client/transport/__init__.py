"""Connections, routes and requests, and the runtime interface that all waits go through."""
