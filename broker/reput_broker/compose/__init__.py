"""What a broker consists of: `storage` is opened first, `parts` are built on it, each room's parts in a file here."""
