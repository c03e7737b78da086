"""Bits that depend on nothing but the values: one order of summation, or one chain of FMAs (rungs 1 to 8)."""

import os
import sys

if os.environ.setdefault("FASTSGEMM_DEVICE", "sim") == "host":  # on a GPU, set FASTSGEMM_DEVICE=cuda
    print("skipped: NumPy promises no order of summation; set FASTSGEMM_DEVICE to sim or cuda")
    sys.exit()

import numpy as np

from fastsgemm import sgemm

generator = np.random.default_rng(0)
A = generator.standard_normal((40, 70), dtype=np.float32)
B = generator.standard_normal((70, 50), dtype=np.float32)

ordered = sgemm(A, B, batch_invariant=True)
ordered_row = sgemm(A[7:8], B, batch_invariant=True)
ordered_column_major = sgemm(np.asfortranarray(A), np.asfortranarray(B), batch_invariant=True)

whole = sgemm(A, B, rung="warptiled")
one_row = sgemm(A[7:8], B, rung="warptiled")
column_major = sgemm(np.asfortranarray(A), np.asfortranarray(B), rung="warptiled")
another_kernel = sgemm(A, B, rung="blocktile_2d")

assert (ordered[7:8] == ordered_row).all()
assert (ordered == ordered_column_major).all()
assert (whole[7:8] == one_row).all()
assert (whole == column_major).all()
assert (whole == another_kernel).all()
assert (whole == ordered).all()  # up to K = 1024
print("the same bits for another batch, another layout and another kernel")
