"""The record, the one binary form of a message: layout, ids, blocks, and views of stored ones."""
