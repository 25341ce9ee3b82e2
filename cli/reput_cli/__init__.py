"""The one command `reput`, a file per noun."""
