"""Value functions: generalised advantage estimation, and the clipped regression loss of PPO's critic.

Episodes end with their last token: nothing is bootstrapped past it.
"""

from __future__ import annotations

from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.reductions import check_same_shape


def gae(
    rewards: torch.Tensor, values: torch.Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """A_t = Σ_l (γλ)^l δ_{t+l}, δ_t = r_t + γ V_{t+1} − V_t, V_T = 0 (arXiv 1506.02438, eq. 16).

    Args:
        rewards: ``[T]`` reward after each token.
        values: ``[T]`` predicted return before each token.
        gamma, lam: discount and trace decay in [0, 1]; with γ = λ = 1, A_t + V_t is the plain reward-to-go.

    Returns ``(advantages [T], returns [T])`` with returns = advantages + values, the critic's target. No gradient.
    """
    check_same_shape(rewards=rewards, values=values)
    if rewards.ndim != 1 or not (0.0 <= gamma <= 1.0 and 0.0 <= lam <= 1.0):
        raise ValueError(f"gae: rewards {tuple(rewards.shape)}, γ {gamma}, λ {lam}; expected [T] and [0, 1]")
    rewards = rewards.detach()
    values = values.detach()
    advantages = torch.empty_like(values)
    running = values.new_zeros(())
    next_value = values.new_zeros(())
    for t in reversed(range(len(rewards))):
        delta = rewards[t] + gamma * next_value - values[t]
        running = delta + gamma * lam * running
        advantages[t] = running
        next_value = values[t]
    return advantages, advantages + values


def value_loss(
    values: torch.Tensor, returns: torch.Tensor, *, old: torch.Tensor | None = None, clip: float | None = None
) -> torch.Tensor:
    """½ max((V − R)², (clip(V, V_old − c, V_old + c) − R)²) (PPO's released code); ½ (V − R)² without ``clip``.

    All ``[B, T]``; ``returns`` and ``old`` are constants. Raises ValueError for ``clip`` without ``old``.
    """
    check_same_shape(values=values, returns=returns)
    squares = (values - returns.detach()).square()
    if clip is None:
        return 0.5 * squares
    if old is None:
        raise ValueError("value_loss: clip needs the old values")
    check_same_shape(values=values, old=old)
    clipped_values = old.detach() + (values - old.detach()).clamp(-clip, clip)
    clipped_squares = (clipped_values - returns.detach()).square()
    return 0.5 * torch.maximum(squares, clipped_squares)
