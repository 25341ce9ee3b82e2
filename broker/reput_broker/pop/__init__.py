"""POP consumption (RocketMQ: PopMessageProcessor, PopReviveService, ConsumerOrderInfoManager).

`processor` serves pops: it takes messages from the `queues`, from the `positions` of the group on, or holds the
request (`polling`). For each queue it puts a check point (`checkpoints`) into the `revive_log`; `ack` puts
acknowledgements there. `revive_service` reads them again and redelivers what was not acknowledged in time.
`order_info` keeps the queues of ordered pops blocked. `recovery` continues the pops of another master. `peek` pops
nothing, `assignment` shares queues out. `feature` builds all of it, `state` is what the requests share.
"""
