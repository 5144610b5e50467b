"""Policy losses of the trainers, how they are added up, and their exact gradient. Needs torch.

`evaluate.evaluate` is the one entry. A loss (`clipped.py`, `linear.py`, `divergence.py`,
`selected.py`, `slime.py`) gives the number of every token; an aggregation (`aggregation.py`) says
what each of them adds to the sum and what that is divided by; `generations.py` says which of both
a trainer generation has. To add a loss: a function and a line in `policy_losses.POLICY_LOSSES`.
"""
