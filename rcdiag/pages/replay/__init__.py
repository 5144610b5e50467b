"""The page of a replay: its figures and their words."""
