"""Offline diagnosis of the mismatch between the policy that sampled and the policy that trains."""
