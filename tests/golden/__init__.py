"""Whole texts compared with committed ones; `--accept` rewrites them."""
