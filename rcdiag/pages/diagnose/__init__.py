"""Figures and sentences of `rcdiag diagnose`: the experiments that separate the causes."""
