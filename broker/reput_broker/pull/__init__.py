"""What pulls and pops share: waiting for messages, reads from the disk, checks of filters."""
