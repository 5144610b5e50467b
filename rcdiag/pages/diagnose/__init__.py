"""Figures and words of `rcdiag diagnose`: the experiments that tell the causes."""
