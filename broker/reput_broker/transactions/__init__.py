"""Transactions (RocketMQ: TransactionalMessageService).

`half_messages` makes and decodes half messages, `transaction_table` holds their states, `processor` takes the
decisions of producers, `op_queue` those to be written. `recovery` restores both at a start. `check_service` has
producers asked about open transactions, `check_requests` sends the requests. `queue_reader` reads system queues.
"""
