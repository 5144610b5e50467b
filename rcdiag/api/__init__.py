"""The functions of `import rcdiag`: what a user names (paths, policies, presets) -> a result.

Each command of the command line is a call of one of them; its options are their keywords.
"""
