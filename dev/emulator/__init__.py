"""Stands in for the containers of an RLJob where no GPU is: runs the RL loop, obeys the layout, reports metrics.

It is the plant that the operator controls, so it shares no model with the planner: step times, noise and drift come from
formulas and constants of its own (``truth``), and whatever the operator learns of them it must learn through Prometheus.
"""
