"""The whole promise on real parts: real vLLM samplers and a real training loop, steered by the installed operator.

What stands in for something is a GPU's time alone: each engine and each trainer takes as long as a device of its own would, by sleeping, so
that two cores can play six GPUs. Pods run as containers under a real kubelet where this machine can be a node, and as processes
(``dev.processes``) where it can't.
"""
