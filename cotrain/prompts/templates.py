"""Templates of prompts, the plain substitution that fills them, and how a solver is asked.

Two sets: short ones for the shipped base, which knows its tasks by heart, and ``*_FULL`` ones that explain the tags to
any chat model. Templates are strings with ``{field}`` marks. How further roles are asked is in
``formats/role_prompts.py``; what a single method asks is with the method.

``fill_template`` reads a template once, from left to right, and never looks at the values: a solution that contains
``{problem}`` or a lone brace is copied as it is. Left out on purpose: ``str.format`` (its fields can reach into
attributes, and it trips over braces in LaTeX) and template engines.
"""

from __future__ import annotations

from cotrain.core.errors import ConfigError

OTHERS_FIELDS = frozenset({"solution", "review", "first", "second", "responses"})  # fields with texts that others wrote

SOLVE = "{problem}\nSolve:"

IN_TAGS = (  # how a whole solution is asked for
    "every step in its own pair of tags, <step> ... </step>, then the final answer once, alone, as <answer> ... "
    "</answer>. Write nothing outside of the tags."
)

SOLVE_FULL = """Solve the problem below step by step.

Write every step of your reasoning in its own pair of tags: <step> ... </step>
One step does one thing, for instance one calculation, and its text gives the result.
After the last step write the final answer once, alone, in one pair of tags: <answer> ... </answer>
Write nothing outside of the tags, and use the tags for nothing else.

Example:
<step>Three boxes of 12 pencils hold 3 * 12 = 36 pencils.</step>
<step>After giving away 6 pencils, 36 - 6 = 30 are left.</step>
<answer>30</answer>

Problem:
{problem}"""


def fields_of(template: str) -> frozenset[str]:
    """The names of the ``{field}`` marks in a template; braces around anything but a name are ordinary text."""
    return frozenset(name for name, _ in _split_template(template) if name is not None)


def literals_of(template: str) -> tuple[str, ...]:
    """The template's own text between its fields."""
    return tuple(text for name, text in _split_template(template) if name is None and text)


def fill_template(template: str, /, **fields: str | int) -> str:
    """Put the fields into the template in a single pass; the values are copied and never read for marks.

    Raises ConfigError when the template asks for a field that is not given, or is given one that it does not use.
    """
    names = fields_of(template)
    missing = sorted(names - fields.keys())
    unknown = sorted(fields.keys() - names)
    if missing or unknown:
        shown = template if len(template) <= 40 else template[:37] + "..."
        raise ConfigError(
            f"prompt template {shown!r} has the fields {sorted(names)} but was given {sorted(fields)} (missing: "
            f"{missing or 'none'}, unknown: {unknown or 'none'}); change the template or the call",
            code="E_TEMPLATE_FIELDS",
        )
    return "".join(text if name is None else str(fields[name]) for name, text in _split_template(template))


def _split_template(template: str) -> list[tuple[str | None, str]]:
    """Split into (field name, its mark) and (None, literal text), in order."""
    pieces: list[tuple[str | None, str]] = []
    at = 0
    while (start := template.find("{", at)) >= 0:
        end = template.find("}", start)
        if end < 0:
            break
        start = template.rfind("{", start, end)  # in "{a {b}" the mark is {b}
        name = template[start + 1 : end]
        if name.isidentifier():
            pieces.append((None, template[at:start]))
            pieces.append((name, template[start : end + 1]))
        else:
            pieces.append((None, template[at : end + 1]))
        at = end + 1
    pieces.append((None, template[at:]))
    return pieces
