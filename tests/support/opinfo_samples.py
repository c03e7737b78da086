"""PyTorch's own samples of its products, computed with the switch on and off: results and gradients.

``python tests/support/opinfo_samples.py --device cuda --json FILE`` runs all of them on a device.
"""

import argparse
import json
import sys
import types
import unittest
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import fastsgemm.torch

OPERATORS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "nn.functional.linear", "mv", "addmv", "dot", "einsum")
TOLERANCE = 1e-5  # of the largest element; the samples have few elements


@dataclass
class Result:
    """What became of the samples of one operator.

    Attributes
    ----------
    operator : str
    samples : int
    replaced, passed_on : int
        Calls of aten operators, forward and backward.
    worst : float
        The largest difference from PyTorch's own result, relative to the largest element of that.
    """

    operator: str
    samples: int = 0
    replaced: int = 0
    passed_on: int = 0
    worst: float = 0.0


def operators():
    """Return PyTorch's descriptions of the operators."""
    if "expecttest" not in sys.modules:  # PyTorch's test helpers import it, and use nothing of it here
        stub = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return [operator for operator in op_db if operator.name in OPERATORS]


def run(operator, device, every=1, **settings):
    """Compute every Nth sample of an operator both ways, and compare.

    Returns
    -------
    Result

    Raises
    ------
    AssertionError
        A result or a gradient is wrong.
    """
    found = Result(f"{operator.name} {operator.variant_test_name}".strip())
    for sample in list(operator.sample_inputs(device, torch.float32, requires_grad=True))[::every]:
        wanted = _values(operator, sample)
        with fastsgemm.torch.enabled(device=device, **settings) as switch:
            values = _values(operator, sample)
        report = switch.report()
        found.samples += 1
        found.replaced += report.calls
        found.passed_on += sum(line.calls for line in report.passed_on)
        for value, expected in zip(values, wanted, strict=True):
            assert (value is None) == (expected is None)
            if expected is not None and expected.numel():
                assert value.shape == expected.shape and value.stride() == expected.stride()
                scale = max(float(expected.detach().abs().max()), 1.0)
                found.worst = max(found.worst, float((value - expected).detach().abs().max()) / scale)
                assert found.worst <= TOLERANCE, (operator.name, sample)
    return found


def _values(operator, sample):
    """Return the result and the gradients of all operands."""
    first = list(sample.input) if isinstance(sample.input, list | tuple) else [sample.input]
    leaves = [x for x in [*first, *sample.args] if isinstance(x, torch.Tensor) and x.requires_grad]
    result = sample.output_process_fn_grad(operator(sample.input, *sample.args, **sample.kwargs))
    if not result.requires_grad:
        return [result]
    weights = torch.ones_like(result).cumsum(-1) if result.dim() else torch.ones_like(result)
    return [result, *torch.autograd.grad(result, leaves, weights, allow_unused=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    results = [asdict(run(operator, given.device)) for operator in operators()]
    for result in results:
        print(result)
    if given.json:
        given.json.write_text(json.dumps({"torch": torch.__version__, "operators": results}, indent=1))


if __name__ == "__main__":
    main()
