"""Compares the rungs: timed on a device, or counted on the simulated device."""
