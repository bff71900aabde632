"""Run and time one training on several sides, turn by turn (`invoke bench`).

Owns everything of a bench but the containers: these are started, followed and removed as a smoke's.
"""
