"""Figures and sentences of `rcdiag compare`: all policies of a table."""
