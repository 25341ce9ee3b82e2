"""Requests and answers, one file for each family: typed headers and bodies.

`header.py` is the base of typed headers, `body.py` of JSON bodies.
"""
