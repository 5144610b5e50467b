"""Use case `compare`: several policies on the same tokens, every pair of them and their order."""
