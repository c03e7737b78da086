"""PyTorch's own samples of its products with the switch on; see `opinfo_samples`."""

from dataclasses import asdict

import opinfo_samples


def measure(device, small, seconds):
    every = 4 if small else 1
    results = [asdict(opinfo_samples.run(operator, device, every)) for operator in opinfo_samples.operators()]
    return {"tolerance": opinfo_samples.TOLERANCE, "operators": results}
