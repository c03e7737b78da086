"""What the switches of PyTorch and of JAX share: when one is on, what it reports, and a program that runs with it."""
