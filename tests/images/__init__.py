"""Checks of every built image, parametrised over the catalog; they need an engine."""
