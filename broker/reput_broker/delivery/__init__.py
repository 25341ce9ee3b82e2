"""Handing messages out to groups: who is a member, who holds which queue, how far each group has come."""
