"""Results are judged here: checks ask what is out of order, and say what to do about it."""
