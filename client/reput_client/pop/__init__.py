"""POP consumption: members without queues of their own, which acknowledge each message by its handle (docs/pop.md)."""
