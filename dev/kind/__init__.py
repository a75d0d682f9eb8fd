"""A cluster of kind, with the operator's image and chart, for the same tests that run on the plane of this machine."""
