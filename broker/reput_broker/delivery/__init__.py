"""What makes a log a message broker: messages for later, and what else is put or passed on by the broker itself."""
