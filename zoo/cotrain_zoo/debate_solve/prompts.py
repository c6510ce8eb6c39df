"""How a critic of one solution is asked, and the judge who checks the step that it names."""

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
