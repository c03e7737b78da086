"""Common parts of the switches of PyTorch and of JAX: periods, reports, and running a program with one on."""
