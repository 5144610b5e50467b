"""Experiments with a checkpoint separate causes that look the same in a table."""
