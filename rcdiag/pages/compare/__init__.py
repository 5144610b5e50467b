"""The page of a comparison: its figures and their words."""
