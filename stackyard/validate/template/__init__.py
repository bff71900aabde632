"""Train a template for some updates, kill and resume it, and judge it (`invoke bench --example`).

Owns the launches, figures and checks of one template. Containers and time limits are a smoke's.
"""
