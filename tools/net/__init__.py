"""What `same_results.py` is made of: its tables, its commands, and how documents are kept."""
