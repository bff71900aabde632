"""Build images with users' own code: folders, git repositories, and whether fixes fit them."""
