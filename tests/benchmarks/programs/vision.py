"""Training a vision transformer: ViT-B/16."""

from functools import partial

import torch
from harness import training
from transformers import ViTConfig, ViTForImageClassification

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
}


def cases(small):
    images = 2 if small else 4
    return {f"ViT-B/16, training, {images} images": partial(_build, SMALL if small else {}, images)}


def _build(size, images, device):
    config = ViTConfig(num_labels=1000, **size)
    with torch.device(device):
        model = ViTForImageClassification(config)
        pixels = torch.randn(images, 3, config.image_size, config.image_size)
        labels = torch.randint(1000, (images,))
    return training(model, lambda: model(pixel_values=pixels, labels=labels).loss)
