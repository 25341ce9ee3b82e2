"""Transactions (RocketMQ: TransactionalMessageService).

`half_messages` makes and decodes half messages, `transaction_table` holds their states, `feature` takes the decisions
of producers, `op_queue` those to be written. `recovery` restores both at a start. `check_service` asks producers about
open transactions. `queue_reader` reads system queues.
"""
