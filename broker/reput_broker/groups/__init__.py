"""Consumer and producer groups: members, queue locks, progress, lag, replies to requesters."""
