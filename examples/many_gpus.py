"""Divide one product among all devices: each computes some rows of C, and nothing has to be exchanged."""

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

A, B = torch.randn(4096, 2048), torch.randn(2048, 3072)
devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
inputs = [(rows.to(device), B.to(device)) for rows, device in zip(A.chunk(len(devices)), devices, strict=False)]

parts = [sgemm(rows, columns) for rows, columns in inputs]  # each call returns at once: the devices work together
C = torch.cat([part.cpu() for part in parts])

assert torch.allclose(C.double(), A.double() @ B.double(), atol=1e-2)
print(f"{len(parts)} devices, {C.shape[0]} rows")
