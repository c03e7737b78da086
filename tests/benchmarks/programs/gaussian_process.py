"""Fitting an exact Gaussian process (gpytorch) by conjugate gradients."""

import warnings
from functools import partial

import gpytorch
import torch
from harness import training

CG_TOLERANCE = 1e-4  # with 0.01 rounding alone would decide when the solver stops, which moves the mean by a percent
TOLERANCE = 1e-2  # of the gradients: near the solver's, rounding decides how many steps it takes


def cases(small):
    n = 256 if small else 1024
    return {f"exact Gaussian process, fitting, n = {n}": partial(_build, n)}


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y):
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def _build(n, device):
    warnings.filterwarnings("ignore", module="gpytorch|linear_operator")
    x = torch.rand(n, 4, device=device)
    y = torch.sin(6 * x).sum(1) + 0.1 * torch.randn(n, device=device)
    model = Model(x, y).to(device).train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    step = training(model, lambda: -objective(model(x), y), lr=0.01)
    settings = gpytorch.settings

    def fit():
        torch.manual_seed(0)  # of the probe vectors
        # Conjugate gradients multiply a matrix and a few vectors; below 800 points gpytorch uses Cholesky.
        with (
            settings.max_cholesky_size(0),
            settings.cg_tolerance(CG_TOLERANCE),
            settings.max_preconditioner_size(15),
        ):
            return step()

    return fit
