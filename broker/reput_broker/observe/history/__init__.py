"""The figures of the past days: sampled every second, kept in one file of fixed size in the data directory."""
