"""The terminal shows results by these modules."""
