"""Figures and words of `rcdiag diagnose`: the experiments that tell the causes."""

from __future__ import annotations

from rcdiag.pages.diagnose import experiments

FIGURES = experiments.FIGURES
