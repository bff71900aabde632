"""Tests of the project: see docs/design.md, "Tests"."""
