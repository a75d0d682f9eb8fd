"""The status page: what the operator knows of its jobs, as pages for a browser and as JSON, without Grafana and without Prometheus.

It is read-only and shows what stands in the RLJobs and nothing else: how the split, the period and the staleness went, which moves were
made, and why. ``history`` keeps what passes by, ``chart`` and ``document`` draw it, ``server`` is the thin edge to HTTP. Off by default: the
metrics port asks nobody who they are.
"""
