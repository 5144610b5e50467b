"""What is out of order, and what to do about it."""
