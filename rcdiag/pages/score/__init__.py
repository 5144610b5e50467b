"""Figures and sentences of `rcdiag score`: one pair of policies."""
