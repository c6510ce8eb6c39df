"""Right answers alone, among k, by vote and by choice: counted by hand."""

import itertools

import pytest

from cotrain.metrics.verdicts import answer_agreement, best_is_right, elected_index, pass_at_k, vote_is_right


def test_pass_at_k_equals_the_average_over_all_subsets():
    for n, c, k in [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (7, 1, 7), (4, 3, 2)]:
        marks = [True] * c + [False] * (n - c)
        subsets = list(itertools.combinations(marks, k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets)), (n, c, k)
    assert pass_at_k(10, 3, 1) == pytest.approx(0.3)
    with pytest.raises(ValueError, match="k=6"):
        pass_at_k(5, 1, 6)


def test_the_most_frequent_answer_is_elected():
    assert elected_index(["4", "5", "5"]) == 1
    assert elected_index(["4", "5", "5", "4"]) == 0  # of equals the one that came first
    assert elected_index([None, None, "7"]) == 2  # what could not be read votes for nothing
    assert elected_index([None]) is None
    assert elected_index([]) is None


def test_votes_may_have_weights():
    assert elected_index(["4", "5", "5"], [0.9, 0.3, 0.3]) == 0  # 0.9 against 0.6
    assert elected_index(["4", "5", "5"], [0.5, 0.3, 0.3]) == 1


def test_a_vote_is_right_where_its_answer_is():
    assert vote_is_right(["4", "5", "5"], [False, True, True])
    assert not vote_is_right(["4", "5", "5"], [True, False, False])
    assert vote_is_right(["4", "5", "5"], [True, False, False], [0.9, 0.3, 0.3])
    assert not vote_is_right([None, None, "7"], [True, True, False])  # what could not be read votes for nothing
    assert not vote_is_right([None], [True])
    assert not vote_is_right([], [])


def test_the_best_scored_is_chosen():
    assert best_is_right([0.2, 0.9, 0.5], [False, True, False])
    assert not best_is_right([0.2, 0.9], [True, False])
    assert best_is_right([0.5, 0.5], [True, False])  # of equals the first
    assert not best_is_right([0.5, 0.5], [False, True])
    assert not best_is_right([], [])


def test_agreement_is_the_share_of_the_largest_group():
    assert answer_agreement(["4", "5", "4"]) == (2, pytest.approx(2 / 3))
    assert answer_agreement(["4"]) == (1, 1.0)
