"""Say which GPUs there are and how healthy, how they enter containers, and what NCCL used.

It must not start a training.
"""
