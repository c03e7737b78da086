"""One product on device memory: check the operands, choose, list the launches as a plan, load the kernels, launch."""
