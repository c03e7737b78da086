"""A policy gradient in bfloat16 whose log-probabilities have the same bits when tokens are drawn and when it trains.

Tokens are drawn one sequence at a time, and the step is taken on all sequences together. With one order of summation
the ratio of the two probabilities is exactly 1 before the step, so that nothing has to be clipped or corrected for.
"""

import os
import sys

os.environ.setdefault("FASTSGEMM_DEVICE", "sim")  # on a GPU, set FASTSGEMM_DEVICE=cuda

try:
    import torch
except ImportError:
    print("skipped: needs PyTorch")
    sys.exit()

import fastsgemm.torch

ON_GPU = os.environ["FASTSGEMM_DEVICE"] == "cuda"
if os.environ["FASTSGEMM_DEVICE"] == "host":
    print("skipped: NumPy promises no order of summation; set FASTSGEMM_DEVICE to sim or cuda")
    sys.exit()
DEVICE = "cuda" if ON_GPU else "cpu"
VOCABULARY, WIDTH, LENGTH, SEQUENCES = (512, 1024, 16, 64) if ON_GPU else (32, 64, 2, 3)


class Policy(torch.nn.Module):
    """Says from the last token which one comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(torch.relu(self.hidden(self.token(tokens))))
        return logits.float().log_softmax(-1)


def drawn(policy: Policy, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one sequence, token by token; return it and the log-probabilities of its tokens."""
    tokens, log_probabilities = [start], []
    for _ in range(LENGTH):
        table = policy(tokens[-1])
        tokens.append(torch.multinomial(table.exp(), 1)[:, 0])
        log_probabilities.append(table.gather(1, tokens[-1][:, None])[:, 0])
    return torch.stack(tokens, 1), torch.stack(log_probabilities, 1)


torch.manual_seed(0)
policy = Policy().to(DEVICE, torch.bfloat16)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
start = torch.randint(VOCABULARY, (SEQUENCES, 1), device=DEVICE)

with fastsgemm.torch.enabled("fp16x3", batch_invariant=True, device=DEVICE) as switch:
    with torch.no_grad():
        sequences = [drawn(policy, first) for first in start]
    tokens, before = (torch.cat(parts) for parts in zip(*sequences, strict=True))
    reward = (tokens[:, 1:] % 2 == 0).float()

    now = policy(tokens[:, :-1]).gather(2, tokens[:, 1:, None])[..., 0]
    assert torch.equal(now, before)  # to the bit: as many rows in a product as there are tokens, and one
    loss = -((now - before).exp() * (reward - reward.mean())).mean()
    loss.backward()
    optimizer.step()

assert not [line for line in switch.report().lines if line.reason]
assert not torch.equal(policy(tokens[:, :-1]).gather(2, tokens[:, 1:, None])[..., 0], before)
print(f"{before.numel()} log-probabilities are the same to the bit in both passes")
