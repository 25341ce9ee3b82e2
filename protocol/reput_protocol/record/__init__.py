"""A message as bytes and as values: its layout and ids, blocks of records, and views of stored ones."""
