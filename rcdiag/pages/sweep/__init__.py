"""Figures and words of `rcdiag sweep`: estimators over their thresholds, and which to take."""
