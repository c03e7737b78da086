"""The benchmark against cuBLAS: its problems, the measurement, the report, and the comparison of two runs."""
