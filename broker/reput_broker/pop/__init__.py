"""POP consumption (RocketMQ: PopMessageProcessor, PopReviveService, ConsumerOrderInfoManager).

`checkpoints` encodes what is in the log, `positions` has how far each group has popped, `recovery` continues those of
another master, `revive_service` redelivers messages that were not acknowledged, `order_info` keeps
ordered queues blocked, `in_flight` counts, `allocation` shares queues out.
"""
