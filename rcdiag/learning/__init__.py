"""Real updates of a model: gradients, optimizer steps, fresh samples.

torch, transformers and peft are imported here and in `rcdiag.engines` only; `training_settings`,
`families` and `learner` need none of them. Use cases work with `trainee.Trainee`.
"""
