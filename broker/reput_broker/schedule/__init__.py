"""Schedules: messages that the broker sends by itself at the times of a cron expression, once for each time.

A schedule is a definition in `config/schedules.json`, which slaves copy. For which times messages were sent is in the
log: each message names its schedule and its time in its unique id, by which a start finds it in the index. So a broker
that was killed, and the master after a failover, know for which times they have to send.
"""
