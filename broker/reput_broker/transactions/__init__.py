"""Transactions: half messages, op messages, and the questions to producers about them."""
