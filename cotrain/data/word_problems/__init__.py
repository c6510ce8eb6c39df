"""Procedural word problems over a graph of named quantities, with an oracle for every step."""

from __future__ import annotations

from cotrain.data.word_problems.source import WordProblems, word_problems

__all__ = ["WordProblems", "word_problems"]
