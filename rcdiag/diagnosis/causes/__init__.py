"""Causes say what went wrong in a run; each is a hypothesis that a table speaks for or against.

To add a cause: a `Cause` in the tuple of its file, with its words in `words/`, or
`CAUSES.add(Cause(...))` from outside. Nothing is imported here, so that words are read quickly.
"""
