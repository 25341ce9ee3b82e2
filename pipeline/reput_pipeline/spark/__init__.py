"""What source, sink and jobs have to do with Spark: its Java (`java`), the session, the Python workers; its options
(`option_reader`), messages in its logs (`notes`), and the errors that end its queries (`errors`).
"""
