"""Documents that are computed: every number and figure in them comes from the planner itself, in the run that writes them.

A page about a simulator that quotes numbers by hand is wrong after the next change of a constant, and nobody notices. So prose and
figures live here beside the code that computes their numbers, and a test compares the committed pages with what the planner says
today.
"""
