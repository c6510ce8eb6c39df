"""How debaters, critics and those who check one step are asked."""

# Of debaters. ``_ON``: for debates of several turns.
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

# Of a critic of one solution, and of the judge who checks the step that it names.
CRITICISE = "{problem}\n{solution}\n{asked}:"
CRITICISE_FULL = """A judge will look at one step of the solution below, the one that you name, and then say whether \
the solution is right.

Problem:
{problem}

The solution, of {count} steps:
{solution}

You are to name this: {asked}. Say why in {words}. Then write the number of the step, counted from 1, once, in one \
pair of tags at the end: <answer> ... </answer>"""
CHECK_STEP = "{problem}\n{solution}\nCheck step {step}:"
