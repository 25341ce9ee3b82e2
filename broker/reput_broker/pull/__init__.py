"""What pulls and pops share.

`long_polling` holds requests that found nothing until a message arrives. `cold_reads` reads messages outside the page
cache in worker threads. `filter_check` compiles and checks filters.
"""
