"""Machines with a container engine, reached over ssh, and runs that live on several of them.

Owns nothing itself: `hosts` says which machines, `link` reaches them, `survey` looks at them,
`standing` starts and ends meshes, `talk` speaks with the supervisor inside, `sync` copies.
"""
