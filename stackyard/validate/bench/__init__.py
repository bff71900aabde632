"""`invoke bench`: one training, played by several sides turn by turn, and timed.

Owns everything of a bench but the containers: these are started, followed and removed as a smoke's.
"""
