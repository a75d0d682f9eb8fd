"""A cluster in memory, in virtual time, in which the operator itself runs unmodified.

A rebalance takes minutes on a real cluster, and what goes wrong with one goes wrong once in thousands. So the passes of the
operator run here against a model of what Kubernetes does: an API server with resource versions, workload controllers, a
scheduler, kubelets, watches that lag. Nothing sleeps: the clock jumps from one event to the next, and an hour takes a fraction of a second.

The model is written from what Kubernetes documents and does, and shares no code with the operator beyond the names of
kinds and errors: a model that counted GPUs with the operator's own functions would agree with its mistakes.

- ``clock``: virtual time, with an event loop of asyncio that follows it
- ``store``: objects, resource versions, server-side apply, watches
- ``workloads``: Deployments, StatefulSets, garbage collection
- ``machines``: nodes, the scheduler, the life of a pod
- ``cluster``: all of it together, and the connection that a client holds, with the faults of a network
- ``watching``: what an operator has seen so far, which may lag
- ``operator``: the operator as a process that can be killed
- ``ledger``: counts GPUs at every change, independently of the operator
- ``jobs``: a small RLJob to run
"""
