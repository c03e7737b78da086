"""Training generative models without convolutions: autoencoder, adversarial net, diffusion, normalizing flow."""

from functools import partial
from itertools import pairwise

import torch
from harness import training
from torch import nn
from torch.nn import functional as F


def cases(small):
    size = (8, 12, 16) if small else (256, 784, 512)
    models = {
        "variational autoencoder": _autoencoder,
        "generative adversarial net": _adversarial,
        "diffusion with a perceptron": _diffusion,
        "normalizing flow": _flow,
    }
    return {
        "{}, training, batch {}, {} x {}".format(name, *size): partial(build, *size) for name, build in models.items()
    }


def _net(*widths):
    layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.SiLU())]
    return nn.Sequential(*layers[:-1])


def _autoencoder(batch, pixels, width, device):
    latent = width // 8
    with torch.device(device):
        model = nn.ModuleList([_net(pixels, width, width, 2 * latent), _net(latent, width, width, pixels)])
        x, noise = torch.rand(batch, pixels), torch.randn(batch, latent)

    def loss():
        mean, spread = model[0](x).chunk(2, 1)
        made = model[1](mean + noise * (spread / 2).exp())
        divergence = (mean.square() + spread.exp() - 1 - spread).sum(1).mean() / 2
        return F.binary_cross_entropy_with_logits(made, x, reduction="sum") / batch + divergence

    return training(model, loss)


def _adversarial(batch, pixels, width, device):
    with torch.device(device):
        generator, critic = _net(width // 8, width, width, pixels), _net(pixels, width, width, 1)
        x, noise = torch.randn(batch, pixels), torch.randn(batch, width // 8)
    learn = training(critic, lambda: (F.softplus(critic(generator(noise).detach())) + F.softplus(-critic(x))).mean())
    create = training(generator, lambda: F.softplus(-critic(generator(noise))).mean())

    def step():
        learn()
        return create()

    return step


def _diffusion(batch, pixels, width, device):
    with torch.device(device):
        model = _net(pixels + 32, width, width, width, pixels)
        x, noise, time = torch.randn(batch, pixels), torch.randn(batch, pixels), torch.rand(batch, 1)
        waves = 2.0 ** torch.arange(16)

    def loss():
        angle = time * torch.pi / 2
        noisy = angle.cos() * x + angle.sin() * noise
        known = torch.cat([noisy, (time * waves).sin(), (time * waves).cos()], 1)
        return (model(known) - noise).square().mean()

    return training(model, loss)


def _flow(batch, pixels, width, device):
    half = pixels // 2
    with torch.device(device):
        model = nn.ModuleList(_net(half, width // 2, 2 * half) for _ in range(8))
        x = torch.randn(batch, pixels) * 0.5

    def loss():
        left, right = x.chunk(2, 1)
        logarithms = 0.0
        for layer in model:
            shift, scale = layer(left).chunk(2, 1)
            scale = scale.tanh()
            left, right = right * scale.exp() + shift, left
            logarithms = logarithms + scale.sum(1)
        return ((left.square() + right.square()).sum(1) / 2 - logarithms).mean() / pixels

    return training(model, loss)
