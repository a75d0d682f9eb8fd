"""How close the operator's decisions come to a clairvoyant's while lengths drift: ``python -m dev.bench.drift``.

The operator's real passes, decisions and moves run in virtual time against a plant of their own (``plant``, ``core``), whose speeds are
hidden from the planner. In the same run, on the same plant with the same luck and the same costs of a move, four other
policies show what there was to gain.
"""
