"""Benchmarks; README.md says how to repeat each of them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
