"""What a terminal shows of results."""
