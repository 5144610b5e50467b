"""The trajectory table: its columns, its files, and the rows that models and statistics read.

Only this package uses Arrow and parquet. To add a column, add a line to `schema.COLUMNS`; to add a
dump format, see `rcdiag.table.readers`.
"""
