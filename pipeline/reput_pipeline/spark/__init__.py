"""What source, sink and jobs have to do with Spark: its Java (`java`), the session, the Python workers; its options
(`option_reader`), the errors that end its queries, and notes in its logs (`errors`).
"""
