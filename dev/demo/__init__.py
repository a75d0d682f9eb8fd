"""The whole loop on one machine, watched: from nothing to a job whose GPUs have been moved, in a few minutes.

Everything that can be real is: API server, scheduler, controllers, Prometheus, and the operator with the rights of an
installation. The containers' work is emulated (``dev.emulator``), twice with the same luck: once as the operator steers it, once as it
would have gone under the first split. What was seen is written down, and the demo fails if it does not show what it is for.
"""
