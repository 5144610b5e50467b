"""A diagnosis from a training log alone: what its numbers show and rule out, and when they changed.

- `quantities.toml`: quantities that logs hold, and the trainers' keys; to add a key, add it there.
- `run.py`: a log as one series for each quantity.
- `changes.py`: the steps at which a series changed, with intervals.
- `course.py`: a run with all of its changes; how its mismatch grows.
- `stretches.py`: parts of a run, each with one level of the mismatch.
- `relations.py`: relations that hold between quantities, as rules of the concern `log`.
- `causes/`: the causes that a log can show, each a function of the numbers of some steps.
- `by_course.py`: causes that the steps around a stretch show, such as weights that lag.
- `ruled_out.py`: causes that the numbers rule out.
- `over_steps.py`: sentences on how a run changed over its steps.
- `judge.py`: one verdict.
"""
