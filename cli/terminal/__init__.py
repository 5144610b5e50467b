"""Modules that show results on the terminal."""
