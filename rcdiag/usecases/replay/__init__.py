"""Replaying an update: the batch, its advantages, each preset's loss and step, and its health."""
