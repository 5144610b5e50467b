"""Parts of `same_results.py`: its tables, its commands, and the storage of result documents."""
