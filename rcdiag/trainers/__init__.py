"""Trainers, a package for each: what it logs, what its settings mean."""
