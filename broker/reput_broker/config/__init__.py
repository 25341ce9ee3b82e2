"""The broker's configuration: its options, where they are read from, and how they are shown."""
