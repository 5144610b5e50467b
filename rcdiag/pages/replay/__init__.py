"""Figures and words of `rcdiag replay`: the update that each preset would have made."""
