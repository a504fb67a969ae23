"""What runs the loops of all layers: threads, compilation and its cache, arrays, recorded calls and their replay."""
