"""Reinforcement learning: a policy gradient through rollouts of pendulums, and a step of deep Q-learning."""

from copy import deepcopy
from functools import partial

import torch
from harness import training
from torch import nn

ACTIONS = 4
TOLERANCE = 5e-2  # of the gradients: a rounding error may change which action is taken


def cases(small):
    rollout, replay = ((3, 8, 16), (8, 8, 16)) if small else ((32, 256, 64), (1024, 64, 512))
    return {
        "policy gradient, training, {} steps of {} pendulums, width {}".format(*rollout): partial(_policy, *rollout),
        "deep Q-learning, training, batch {}, {} inputs, width {}".format(*replay): partial(_q_learning, *replay),
    }


def _net(inputs, width, outputs):
    hidden = nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def _policy(steps, count, width, device):
    with torch.device(device):
        policy = _net(3, width, ACTIONS)
        start = torch.randn(2, count)
        # Drawn before the step, so that all kinds of products draw the same actions.
        drawn = -torch.rand(steps, count, ACTIONS).log().neg().log()
        pushes = torch.linspace(-2, 2, ACTIONS)

    def loss():
        angle, speed = start
        total, likely = torch.zeros_like(angle), []
        for noise in drawn:
            logits = policy(torch.stack([angle.cos(), angle.sin(), speed], 1))
            action = (logits.detach() + noise).argmax(1, keepdim=True)
            likely.append(logits.log_softmax(1).gather(1, action)[:, 0])
            speed = (speed + 0.05 * (15 * angle.sin() + 3 * pushes[action[:, 0]])).clamp(-8, 8)
            angle = angle + 0.05 * speed
            total = total - angle.cos() ** 2 - 0.1 * speed**2
        return -(torch.stack(likely).sum(0) * (total - total.mean())).mean()

    return training(policy, loss)


def _q_learning(batch, inputs, width, device):
    with torch.device(device):
        model = _net(inputs, width, ACTIONS)
        target = deepcopy(model).requires_grad_(False)
        before, after = torch.randn(2, batch, inputs)
        actions, rewards = torch.randint(ACTIONS, (batch, 1)), torch.randn(batch)

    def loss():
        with torch.no_grad():
            # The double estimate: one net chooses the action, the other values it.
            following = target(after).gather(1, model(after).argmax(1, keepdim=True))[:, 0]
        return nn.functional.smooth_l1_loss(model(before).gather(1, actions)[:, 0], rewards + 0.99 * following)

    return training(model, loss)
