"""Products of matrices and convolutions on a GPU, in float32 and TF32, and sums over rows."""
