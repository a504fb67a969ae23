"""Networks of PyTorch, and averages of posteriors."""
