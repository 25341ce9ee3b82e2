"""Producer, consumers and admin for Python programs."""
