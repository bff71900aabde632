"""Say which GPUs there are, how they enter containers, and what NCCL used between them.

It must not start a training.
"""
