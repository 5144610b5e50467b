"""The page of a sweep: its figures, tables and sliders."""
