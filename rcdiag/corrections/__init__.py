"""Rollout correction: weights and rejection from log-ratios, as the trainers define them.

`config.py` says what a correction is, `quantities.py` what it needs of the tokens, `rows.py` what
is kept of them, `reductions.py` how numbers are made from that. `trainers/` holds one file per
trainer generation: its presets, its names, its definitions. To add one: a file and a line in
`trainers/__init__.py`.
"""
