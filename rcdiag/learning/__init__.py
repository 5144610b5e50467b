"""Real updates of a policy: gradients, optimizer steps, fresh samples.

An edge like `rcdiag.backends`: torch, transformers and peft live in these two alone. `settings.py`
and `basis.py` need none of them. `trainee.Trainee` is the door.
"""
