"""What a consumer wants of a topic: tags, or an SQL92 expression over the properties."""
