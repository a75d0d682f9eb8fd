"""A real vLLM on this machine, without a GPU: what the samplers of a job really are.

Everything that the operator and the runtime believe of vLLM (its metrics, what a pause does to them, what SIGTERM does to requests) can be
tried on a server that takes half a minute to start. ``install`` makes its environment, ``model`` a model of a few hundred kilobytes,
``server`` runs it, and ``device`` stands in for the one thing that is missing: the time that a GPU takes.
"""
