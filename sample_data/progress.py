"""Short progress lines on stderr."""

import sys
import time

START = time.time()


def log(message: str) -> None:
    """Print one progress line with the seconds since the start."""
    print(f"[{time.time() - START:6.0f} s] {message}", file=sys.stderr, flush=True)
