"""Find secrets and traces of the caller's machine in an image before it is published."""
