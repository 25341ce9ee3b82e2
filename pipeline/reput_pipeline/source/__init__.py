"""Reading topics into Spark: options, planning, live and offline reading, streams."""
