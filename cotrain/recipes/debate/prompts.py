"""How debaters are asked. ``_ON``: in debates of several turns."""

ACCUSE = "{problem}\nMine:\n{mine}\nOther:\n{other}\nWrong step:"
ACCUSE_ON = "{problem}\nMine:\n{mine}\nOther:\n{other}\nSaid: {said}\nWrong step:"
ACCUSE_FULL = """Two solutions of the problem below come to different answers. You defend the first. A judge will \
look at one step of the second solution: the one that you accuse.

Problem:
{problem}

The solution that you defend:
{mine}

The other solution, of {count} steps:
{other}

Which of its steps is wrong? Say why in {words}. Then write the number of the step, counted from 1, once, in one pair \
of tags at the end: <answer> ... </answer>"""
ACCUSE_ON_FULL = (
    ACCUSE_FULL
    + """
Steps that were accused in earlier turns, by you (Mine) and by the other side: {said}. You may choose again."""
)
