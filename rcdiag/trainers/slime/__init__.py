"""slime and its MIS helper."""
