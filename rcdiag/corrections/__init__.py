"""Rollout correction: weights and rejection from log-ratios, as the trainers define them.

A `Correction` says what is done; `apply` does it, for one setting or for thousands, on the rows of
a batch. Whoever needs a sum of tokens asks the rows for it (`sequences`), as a `Quantity` of the
tokens (`quantities`). Beside the trainer's numbers (`trainer_means`) stand those without its clamps
(`actual`). A trainer's presets are in `rcdiag.trainers`.
"""
