"""Capture a product in a CUDA graph and replay it with other values: no Python runs in between."""

import sys

from fastsgemm import sgemm

try:
    import torch
except ImportError as error:
    print(f"skipped: this needs PyTorch ({error})")
    sys.exit()
if not torch.cuda.is_available():
    print("skipped: this needs a GPU that PyTorch can use")
    sys.exit()

A, B = (torch.randn(512, 512, device="cuda") for _ in range(2))
C = torch.empty(512, 512, device="cuda")
sgemm(A, B, C=C)  # compiles the kernel: nothing can be compiled inside a capture

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    sgemm(A, B, C=C)

A.normal_()
graph.replay()
assert torch.allclose(C.double(), A.double() @ B.double(), atol=1e-3)
print("replayed with new values")
