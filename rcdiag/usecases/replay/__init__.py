"""Replaying an update: the batch, its advantages, what each preset makes of it, and its health."""
