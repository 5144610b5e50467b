"""Figures and words of `rcdiag compare`: all policies of a table."""
