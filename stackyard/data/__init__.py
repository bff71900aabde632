"""Encode users' text as a stack's training reads it."""
