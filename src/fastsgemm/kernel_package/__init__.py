"""Packages of compiled kernels, for machines without NVRTC: which kernels they have, and how they are built."""
