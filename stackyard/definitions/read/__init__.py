"""Read one declared file each, strictly: unknown keys and wrong types are problems with a place."""
