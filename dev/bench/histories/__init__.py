"""Random histories of a cluster, to see that no job ever holds more GPUs than its budget, and that all comes to rest.

Examples of what goes wrong with a rebalance are easy to think of and easy to survive; what breaks such a tool is two of them at
once, in the wrong order, at the wrong request. So histories are drawn at random: an operator that is killed in the middle of a
request, writes whose answers are lost or that arrive late, watches that lag, pods that stick, are evicted or deleted by somebody, nodes that
vanish and come back, edits of the spec and of children, two jobs on the same nodes. The operator's own passes run in them, in virtual
time; only what decides *where* a job should move is replaced by chance, since a move in the wrong direction must be as safe as one in
the right one.

At every change of the cluster an independent count compares what each job holds with what it may hold. At the end all faults
cease, and within a bounded time every job must be at rest: the split in force, its pods ready or honestly waiting, no move left.

- ``shape``: nodes and jobs that a history begins with
- ``world``: the cluster, the operator and all that may happen to them
- ``framework``: the jobs' own side: acknowledgements, drains, metrics, or their absence
- ``decisions``: splits by chance
- ``weather``: what becomes of requests
- ``rest``: whether all has come to rest
- ``history``: a history as a value: drawn from a seed, run, shortened
- ``many``: many of them, in several processes
- ``mutants``: broken operators, which the check must catch
"""
