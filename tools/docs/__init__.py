"""What makes the pages of docs/: generated reference, tables, a figure, and the quoted commands."""
