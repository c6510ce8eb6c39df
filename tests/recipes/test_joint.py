"""Joint actions by hand: pairing, credit on a matrix game, and returns that go up a tree."""

import pytest
import torch

from cotrain.algorithms.policy_gradient import mean_baseline
from cotrain.recipes.magrpo.joint import answer_returns, backed_up_return, joint_actions
from tests.sentences import refuses

GAME = [[3.0, 0.0], [1.0, 2.0]]  # what both get when one plays the row and the other the column


def credit(pairing):
    """[agent][action] minus the mean, of two agents who each try both of their actions once."""
    joint = joint_actions(pairing, 2, 2)
    returns = answer_returns(joint, [GAME[a][b] for a, b in joint], 2, 2)
    return [
        mean_baseline(torch.tensor(r, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)).tolist() for r in returns
    ]


def test_aligned_and_crossed_credit_on_a_matrix_game():
    assert joint_actions("aligned", 2, 2) == ((0, 0), (1, 1))
    assert joint_actions("crossed", 2, 2) == ((0, 0), (0, 1), (1, 0), (1, 1))
    # Aligned: rows and columns are 3 and 2, so both agents hear of the diagonal alone.
    assert credit("aligned") == [[0.5, -0.5], [0.5, -0.5]]
    # Crossed: rows are 3 + 0 and 1 + 2, columns 3 + 1 and 0 + 2.
    assert credit("crossed") == [[0.0, 0.0], [1.0, -1.0]]


def test_crossed_credit_is_the_gradient_at_uniform_policies():
    """d E[r] / d logit of an action at p = 1/2 is p (E[r | action] − E[r]); crossed returns are twice E[r | action]."""
    logits = [torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    p, q = (one.softmax(0) for one in logits)
    (p @ torch.tensor(GAME, dtype=torch.float64) @ q).backward()
    for agent, values in enumerate(credit("crossed")):
        assert logits[agent].grad.tolist() == pytest.approx([0.5 * value / 2 for value in values])


def test_an_answer_returns_the_sum_of_its_joint_actions():
    joint = joint_actions("crossed", 3, 2)
    assert len(joint) == 8
    assert answer_returns(joint, [1.0] * 8, 3, 2) == [[4.0, 4.0]] * 3  # K^(N−1) of each


def test_returns_go_up_the_tree_by_the_mean_of_the_children():
    assert backed_up_return(0.5, [1.0, 0.0, 2.0], 0.9) == pytest.approx(0.5 + 0.9)
    assert backed_up_return(0.5, [], 0.9) == 0.5
    with refuses("E_UNKNOWN_PAIRING", names="'crossed'"):
        joint_actions("cross", 2, 2)
