"""Transactions (RocketMQ: TransactionalMessageService).

`half_messages` makes and decodes half messages and holds their states, `feature` takes the decisions of producers and
asks them about open transactions, `op_queue` has the decisions to be written, and restores both at a start.
`queue_reader` reads system queues.
"""
