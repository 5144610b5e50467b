"""Rollout correction: weights and rejection from log-ratios, as the trainers define them.

A `Correction` says what is done; `apply` does it, for one setting or for thousands, on the token
sums of a batch (`quantities`) that is kept as rows (`sequences`). Beside the trainer's numbers
(`trainer_means`) stand those without its clamps (`actual`). A trainer's presets are in
`rcdiag.trainers`.
"""
