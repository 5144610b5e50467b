"""The trajectory table: its columns, its files, and the rows that models and statistics read.

Parquet stays in here. To add a column to the contract: one line in `schema.COLUMNS`.
"""
