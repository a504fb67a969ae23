"""Scalar moment formulas, each written once: no arrays, no loops, float32 constants only.

Every function is `@formula`: compiled into whatever loop calls it, on any device. Variances are variances.
"""
