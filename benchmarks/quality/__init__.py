"""How good answers and error bars are: `python -m benchmarks.quality SUBJECT`."""
