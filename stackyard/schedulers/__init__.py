"""Write jobs for Slurm and Kubernetes, and talk to both.

It must not start containers by itself.
"""
