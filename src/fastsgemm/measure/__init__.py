"""Device time, cuBLAS and facts of the machine, for tuning, the ladder and the benchmark."""
