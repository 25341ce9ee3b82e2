"""The CommitLog: its files, how they are made, mapped, walked and deleted."""
