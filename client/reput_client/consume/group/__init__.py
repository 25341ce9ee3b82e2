"""What a member of a consumer group does: joins, shares the queues out, takes them and gives them up, commits."""
