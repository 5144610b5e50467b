"""Judges results: checks ask for problems, causes explain a mismatch, guides set levels."""
