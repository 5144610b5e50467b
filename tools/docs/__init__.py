"""Generated parts of docs/: reference pages, tables, a figure, and the output of commands."""
