"""What a producer does with messages: gathers them in blocks, sends the blocks, reports what became of each message."""
