"""Figures and sentences of `rcdiag sweep`: estimators over thresholds, and the recommendation."""
