"""Read declared files strictly; unknown keys and wrong types become problems with a line."""
