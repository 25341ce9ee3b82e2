"""Look at a store directory without a broker: verify, dump, repair, rebuild, export.

Synchronous, and free of the broker's services: what is here reads files as they lie on the disk, of Reput's and of
RocketMQ's directories alike, and takes file sizes from the files themselves. Only `repair` and `rebuild` write.
"""
