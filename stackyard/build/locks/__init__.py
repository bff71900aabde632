"""Make locks: resolve packages, say what changes, and find what is behind."""
