"""Procedural word problems over a graph of named quantities, with an oracle for every step."""

from __future__ import annotations

from cotrain.tasks.words.source import WordProblems, word_problems

__all__ = ["WordProblems", "word_problems"]
