"""The rungs side by side: timed on a device, or counted on the simulated one."""
