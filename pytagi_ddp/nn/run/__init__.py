"""Passes of a network: input, output updates, memory, recording."""
