"""Scoring by Hugging Face transformers, in the precision of a trainer."""
