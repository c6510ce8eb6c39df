"""Writers of the formats that generative verifiers answer in: the readers must read back what these write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotrain.formats.verdicts import _SCORES


def write_genrm(rationale: str, final: bool) -> str:
    """``read_genrm`` reads the verdict back; the rationale must not hold its tag."""
    return f"{rationale}\n<verdict>{_yes_no(final)}</verdict>" if rationale else _yes_no(final)


def write_genprm(analyses: Sequence[str], steps: Sequence[bool], codes: Mapping[int, str] | None = None) -> str:
    """``read_genprm`` reads the verdicts back. Args: analyses [K]; steps [K]; codes: by 0-based step, where there is
    any. No text may hold one of the three tags."""
    written = codes or {}
    return "\n".join(
        f"<analyze>{analysis}</analyze>\n"
        + (f"<verify>{written[k]}</verify>\n" if k in written else "")
        + f"<output>\\boxed{{{_yes_no(right)}}}</output>"
        for k, (analysis, right) in enumerate(zip(analyses, steps, strict=True))
    )


def write_score(evaluation: str, score: float) -> str:
    """``read_score`` reads it back. Raises ValueError unless the score is 0, 0.5 or 1."""
    if score not in _SCORES.values():
        raise ValueError(f"a score is 0, 0.5 or 1, not {score}")
    return f"{evaluation}\n<score>{score:g}</score>"


def write_rmr1(rubric: str, evaluation: str, first: bool) -> str:
    """``read_rmr1`` reads it back, unless a text holds its tags or ends on a letter in brackets."""
    return f"<rubric>{rubric}</rubric>\n<eval>{evaluation}</eval>\n<answer>[[{_letter(first)}]]</answer>"


def write_thinkrm(thought: str, margin: int, *, graded: bool = False) -> str:
    """``read_thinkrm`` reads it back. Args: margin: r_first − r_second, ±1 or with ``graded`` −3 … 3. Raises
    ValueError for another margin."""
    if abs(margin) > 3 if graded else abs(margin) != 1:
        raise ValueError(f"a margin is {'-3 ... 3' if graded else '1 or -1'}, not {margin}")
    return f"<think>{thought}</think>\n<answer>{-margin if graded else _letter(margin > 0)}</answer>"


def write_grm(principles: Sequence[tuple[str, int]], critique: str, points: Sequence[int]) -> str:
    """``read_grm`` reads it back. Args: principles: (one line of text, per cent); points [N] 1 … 10."""
    lines = "\n".join(f"{weight}% {name}" for name, weight in principles)
    scores = ", ".join(map(str, points))
    return f"<principles>\n{lines}\n</principles>\n<critique>{critique}</critique>\n<scores>[{scores}]</scores>"


def _letter(first: bool) -> str:
    return "A" if first else "B"


def _yes_no(right: bool) -> str:
    return "Yes" if right else "No"
