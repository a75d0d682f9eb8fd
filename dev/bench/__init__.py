"""Benchmarks: what the product's speed is, and where its time goes. Nothing here is imported by the product."""
