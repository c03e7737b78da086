"""One product on device memory: check the operands, choose the config, get the kernel, compute the grid, launch."""
