"""Filters of consumers: tags, or an SQL92 expression over message properties."""
