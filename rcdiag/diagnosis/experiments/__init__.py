"""Experiments tell causes apart that leave the same trace in a table, with a checkpoint at hand."""
