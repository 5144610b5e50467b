"""Scoring by vLLM, inside the engine: prefill through a pooler, decode by forced tokens."""
