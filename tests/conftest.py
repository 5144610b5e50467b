"""Settings and fixtures of the whole suite; builders of test data are in `tests.builders`."""

from hypothesis import settings

# The same examples every time: a suite that fails by chance is not believed.
settings.register_profile("rcdiag", deadline=None, derandomize=True, max_examples=50, database=None)
settings.load_profile("rcdiag")
