"""The IndexFile: messages found by key or unique id."""
