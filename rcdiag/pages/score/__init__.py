"""Figures and words of `rcdiag score`: one pair of policies."""
