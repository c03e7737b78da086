"""Inference of two small vision models (timm), one of which attends within windows."""

from functools import partial

import timm
import torch

SMALL_VIT = {"depth": 2, "img_size": 32, "patch_size": 8}
SMALL_SWIN = {"img_size": 32, "patch_size": 2, "window_size": 4, "depths": (1, 1), "num_heads": (2, 4)}


def cases(small):
    images, size = (1, 32) if small else (16, 224)
    return {
        f"ViT tiny (timm), inference, {images} images": partial(
            _build, "vit_tiny_patch16_224", SMALL_VIT if small else {}, images, size
        ),
        f"Swin tiny (timm), inference, {images} images": partial(
            _build, "swin_tiny_patch4_window7_224", SMALL_SWIN if small else {}, images, size
        ),
    }


def _build(name, more, images, size, device):
    model = timm.create_model(name, pretrained=False, **more).to(device).eval()
    pixels = torch.randn(images, 3, size, size, device=device)
    return torch.no_grad()(lambda: model(pixels))
