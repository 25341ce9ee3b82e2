"""Listeners, connections and the dispatch of requests to processors."""
