"""A group member: joining, dividing, taking and giving up queues, delivering messages, committing."""
