"""Products of matrices and convolutions, in C and Cython: BLAS, AMX, AVX2, bfloat16, Winograd."""
