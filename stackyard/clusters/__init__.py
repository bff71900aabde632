"""Jobs for engines that are there already: Slurm and Kubernetes.

Owns nothing itself; each engine is pure modules that render its files and a
thin one that talks to it.
"""
