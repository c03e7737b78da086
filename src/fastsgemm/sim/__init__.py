"""A simulated device: runs the PTX of the kernels on the CPU, exactly, counts what they do and checks it.

`sgemm` runs a rung as a card would; `Machine` launches any CUDA C++ kernel; `climb` compares the rungs.
"""

from fastsgemm.sim.gemm import sgemm
from fastsgemm.sim.global_memory import Region
from fastsgemm.sim.machine import Machine
from fastsgemm.sim.report import Report
from fastsgemm.sim.table import Row, Table, climb

__all__ = ["Machine", "Region", "Report", "Row", "Table", "climb", "sgemm"]
