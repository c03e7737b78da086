"""Device time and cuBLAS, for tuning and for the ladder."""
