"""Figures and sentences of `rcdiag replay`: the update that each preset would have made."""
