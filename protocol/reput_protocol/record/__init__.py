"""The record, the one binary form of a message: its layout, ids, blocks of records, and views of stored ones."""
