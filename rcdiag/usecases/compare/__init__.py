"""Several policies on the same tokens: moments, ladder, triangulation. No I/O."""
