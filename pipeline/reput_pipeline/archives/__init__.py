"""Archives: Parquet files named by what is in them, and a manifest for every batch."""
