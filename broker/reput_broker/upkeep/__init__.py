"""Background tasks that keep the files of an open store in order.

`clean_service` deletes expired files, `allocate_service` makes files ahead, `store_upkeep` syncs the queues, writes the
checkpoint, completes the index and watches the directories. The log itself is synced by `put.flush_service`.
"""
