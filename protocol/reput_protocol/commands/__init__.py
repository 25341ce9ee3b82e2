"""The requests and answers, a file for each family: its headers as typed values, and its bodies.

`header.py` has what all typed headers share, `body.py` what all JSON bodies share.
"""
