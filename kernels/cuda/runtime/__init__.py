"""Compilation, cubins, arrays, instructions, recorded launches, and the simulator of GPUs."""
