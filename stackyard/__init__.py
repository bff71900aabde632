"""Stackyard: builds, proves and ships container images for distributed training."""

__version__ = "0.2.0"
