"""Stackyard: builds, proves and ships container images for distributed training."""

__version__ = "0.1.0"
