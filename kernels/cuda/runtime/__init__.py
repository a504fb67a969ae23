"""Compilation, cubins, arrays, instructions and recorded launches."""
