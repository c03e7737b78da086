"""The tuner: it searches for the fastest config of each problem on a device and stores it."""
