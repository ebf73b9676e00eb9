"""Benchmarks; README.md says how to repeat each of them."""
