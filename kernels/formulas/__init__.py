"""Scalar moment formulas, each written once: no arrays, no loops, float32 constants only.

Every function is a `@formula`: compiled into the loops that call it, on any device. Variances are never standard
deviations.
"""
