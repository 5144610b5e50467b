"""What rcdiag does: one function for every command, inputs to result."""
