"""Examine and repair a store directory without a broker: verify, dump, repair, rebuild, export.

Synchronous, without the broker's services: reads files of Reput's and RocketMQ's directories alike,
and takes file sizes from the files themselves. Only `repair` and `rebuild` write.
"""
