"""A simulated device: runs the PTX of the kernels on the CPU, exactly, counts what they do and checks it.

`sgemm` runs a rung as a device would; `Machine` launches any CUDA C++ kernel.
"""

from __future__ import annotations

from fastsgemm.sim.gemm import sgemm
from fastsgemm.sim.global_memory import Region
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report

__all__ = ["Machine", "Region", "Report", "sgemm"]
