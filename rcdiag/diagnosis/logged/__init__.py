"""A diagnosis from a training log alone: what its numbers show and rule out, and when they changed.

- `quantities.toml`: quantities that logs hold, and the trainers' keys; to add a key, add it there.
- `run.py`: a log as one series for each quantity.
- `changes.py`: the steps at which a series changed, with intervals.
- `relations.py`: relations that hold between quantities, as rules of the concern `log`.
- `causes/`: the causes that a log can show, each a function of the numbers of some steps.
- `over_steps.py`: sentences on how a run changed over its steps.
- `judge.py`: one verdict.
"""
