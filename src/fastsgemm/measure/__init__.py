"""Device times and cuBLAS, for tuning and for the ladder alike."""
