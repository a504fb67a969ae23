"""The decorator of every formula."""

from numba import njit

formula = njit(inline="always")
