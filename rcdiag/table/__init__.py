"""The trajectory table: its columns, its files, and the rows that models and statistics read.

Arrow and parquet stay in here. To add a column to the contract, add a line to `schema.COLUMNS`; to
add a dump format, see `rcdiag.table.readers`.
"""
