"""A diagnosis from a training log alone: what its numbers show, rule out, and when they moved.

- `quantities.toml`: what logs hold, and the keys of trainers; to add a key, add it there.
- `run.py`: a log as one series for each quantity.
- `changes.py`: at which step a series moved, with an interval.
- `relations.py`: relations that hold between quantities, as rules of the concern `log`.
- `causes.py`: the causes that a log can show, each a function of the numbers of some steps.
- `over_steps.py`: what is said of the course of a run.
- `judge.py`: one verdict.
"""
