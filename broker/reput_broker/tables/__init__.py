"""The tables under `config/`: topics, consumer groups, consumer offsets, and how they are saved."""
