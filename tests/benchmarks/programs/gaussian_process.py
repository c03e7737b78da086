"""Fit an exact Gaussian process (gpytorch) to random data, with PyTorch's products and with fastsgemm's."""

import time
import warnings

import gpytorch
import torch
from with_switch import compare

CG_TOLERANCE = 1e-4  # with 0.01 rounding alone would decide when the solver stops, which moves the mean by a percent


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def fit(device, n, iterations, how):
    """Return the hyperparameters and the seconds that the fit took."""
    torch.manual_seed(0)
    x = torch.rand(n, 4)
    y = torch.sin(6 * x).sum(1) + 0.1 * torch.randn(n)
    x, y = x.to(device), y.to(device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
    model = Model(x, y, likelihood).to(device).train()
    likelihood.train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    # By conjugate gradients, which multiply a matrix and a few vectors; below 800 points gpytorch uses Cholesky.
    settings = gpytorch.settings
    with how, settings.max_cholesky_size(0), settings.cg_tolerance(CG_TOLERANCE), settings.max_preconditioner_size(15):
        started = time.perf_counter()
        for i in range(iterations):
            torch.manual_seed(i)  # of the probe vectors
            optimizer.zero_grad()
            loss = -objective(model(x), y)
            loss.backward()
            optimizer.step()
        loss.item()
        seconds = time.perf_counter() - started
    return {
        "lengthscale": model.kernel.base_kernel.lengthscale.item(),
        "outputscale": model.kernel.outputscale.item(),
        "noise": likelihood.noise.item(),
        "mean": model.mean.constant.item(),
        "loss": loss.item(),
    }, seconds


def measure(device="cuda", small=False):
    warnings.simplefilter("ignore")
    n, iterations = (256, 3) if small else (8192, 20)
    found = compare(lambda how, steps: fit(device, n, steps, how), iterations, _difference, device, small)
    found["hyperparameters"], found["seconds"] = found.pop("results"), found.pop("times")
    return {"n": n, "iterations": iterations, "cg_tolerance": CG_TOLERANCE, **found}


def _difference(values, plain):
    """The largest relative difference of a hyperparameter."""
    return max(abs(values[name] - plain[name]) / max(abs(plain[name]), 1e-3) for name in plain if name != "loss")
