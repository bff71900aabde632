"""Build images with users' own code from folders or git repositories, and check it first."""
