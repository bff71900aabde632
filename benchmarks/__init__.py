"""Measure builds and meshes, each against what a person would do by hand."""
