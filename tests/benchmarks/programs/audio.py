"""An encoder of speech at inference: a Fourier transform and a mel filter, both products, and four blocks."""

from functools import partial

import torch
from torch import nn


def cases(small):
    clips, seconds, width, blocks = (1, 0.1, 16, 1) if small else (8, 4, 384, 4)
    what = f"audio encoder, inference, {clips} x {seconds} s, {width} wide"
    return {what: partial(_build, clips, seconds, width, blocks)}


class Encoder(nn.Module):
    RATE, FRAME, HOP, MELS, HEADS = 16_000, 400, 160, 80, 4

    def __init__(self, width, blocks):
        super().__init__()
        angles = 2 * torch.pi * torch.arange(self.FRAME)[:, None] * torch.arange(self.FRAME // 2 + 1) / self.FRAME
        window = torch.hann_window(self.FRAME)[:, None]
        self.register_buffer("transform", torch.cat([angles.cos(), angles.sin()], 1) * window)
        self.register_buffer("mels", torch.rand(self.FRAME // 2 + 1, self.MELS) / self.FRAME)
        self.embed = nn.Linear(2 * self.MELS, width)  # of two frames
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "of_heads": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "perceptron": nn.Sequential(
                        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
                    ),
                }
            )
            for _ in range(blocks)
        )

    def forward(self, samples):
        frames = samples.unfold(1, self.FRAME, self.HOP)
        real, imaginary = (frames @ self.transform).chunk(2, -1)
        mels = ((real.square() + imaginary.square()) @ self.mels + 1e-6).log()
        x = self.embed(mels[:, : mels.shape[1] // 2 * 2].reshape(len(mels), -1, 2 * self.MELS))
        for block in self.blocks:
            q, k, v = block["of_heads"](block["norm"](x)).unflatten(2, (3, self.HEADS, -1)).permute(2, 0, 3, 1, 4)
            weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
            x = x + block["out"]((weights @ v).transpose(1, 2).flatten(2))
            x = x + block["perceptron"](x)
        return x


def _build(clips, seconds, width, blocks, device):
    with torch.device(device):
        model = Encoder(width, blocks).eval()
        samples = torch.randn(clips, int(seconds * Encoder.RATE))
    return torch.no_grad()(lambda: model(samples))
