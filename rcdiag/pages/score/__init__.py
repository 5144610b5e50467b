"""The page of a score: its figures and their words."""
