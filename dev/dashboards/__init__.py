"""The Grafana dashboards: built here from Python into the JSON that the chart ships, and drawn for the docs.

A dashboard's JSON is some thousand lines in which nobody sees what matters. The builder says each panel once, in the order in which it is
read, and gives all panels the same look; what Grafana needs besides (ids, positions, data source) is added by rule.
"""
