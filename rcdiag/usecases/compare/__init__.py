"""Use case `compare`: several policies on the same tokens, in pairs and along a ladder."""
