"""slime: the MIS helper and its own loss."""
