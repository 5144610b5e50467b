"""A policy takes real updates here: gradients, optimizer steps, fresh samples.

torch, transformers and peft live here and in `rcdiag.engines`, and nowhere else but in the
differentiable losses. `settings`, `basis` and `learner` need none of them. `trainee.Trainee` is
what the use cases hold.
"""
