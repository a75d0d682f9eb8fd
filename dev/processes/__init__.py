"""A node whose pods run as processes of this machine: no root, no container engine, no image.

The plane's simulated nodes run no code, and a real node needs root. In between, this node does what a kubelet does with everything about
a pod that is not isolation: it takes the pods that the scheduler binds to it, resolves their environment, keeps their ConfigMaps on disk as
files that change in one step, runs their commands, probes them, restarts what ends, runs the ``preStop`` hook, sends SIGTERM, waits for
the grace period and kills, and reports all of it as the pod's status. It shows the API server the identity of one node and has the rights
of one node.

What it does not do, and says so where a pod asks for it: images (a container needs a ``command``), users, limits of CPU and memory, network
namespaces. Each pod has a loopback address of its own, on which it has to listen; the path of a mount is replaced by the real one
wherever it stands in command, arguments and environment; names of Services are answered in Python processes alone (see ``names``).
"""
