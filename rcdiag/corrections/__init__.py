"""Rollout correction: weights and rejection from log-ratios, as the trainers define them.

A `Correction` describes it; `apply` applies it, for one setting or thousands, to the rows of a
batch. Code that needs a sum over tokens requests it from the rows (`sequences`), as a `Quantity` of
the tokens (`quantities`). Next to the trainer's numbers (`trainer_means`) there are numbers without
its clamps (`actual`). A trainer's presets are in `rcdiag.trainers`.
"""
