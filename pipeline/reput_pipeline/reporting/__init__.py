"""Figures about messages, and the page that shows them."""
