"""specnb: tree-based speculative decoding, one tree and one target forward at a time.

Every method is a tree that rides one target forward pass: a drafter proposes it, the target scores all of its
nodes at once under an ancestor mask, a verifier elects a path and one more token, the cache keeps that path.
The loop is the seven files beside this one; the rooms around it say in their __init__ what they hold.
Throughout, p is the target's distribution and q the draft's.
"""

__version__ = "0.1.0"
