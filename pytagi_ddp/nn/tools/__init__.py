"""Functions over a network: inspection, profiles, statistics, smoothing."""
