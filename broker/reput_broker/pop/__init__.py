"""POP consumption (RocketMQ: PopMessageProcessor, PopReviveService, ConsumerOrderInfoManager).

`processor` serves pops and peeks: it takes messages from the group's `positions` on, or holds the request (`polling`).
For each queue it puts a check point (`checkpoints`) into the log; `ack` puts acknowledgements there. `revive_service`
reads them again and redelivers what was not acknowledged in time. `order_info` keeps the queues of ordered pops
blocked. `positions` also continues the pops of another master. `feature` builds all of it and assigns queues, `state`
is what the requests share.
"""
