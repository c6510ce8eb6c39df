r"""What "phrase" and "last-number" read where models write mathematics, lists and closing sentences."""

import pytest

from cotrain.core.types import ParseFailure
from cotrain.formats.answers import READERS, answer_reader, free_solution, write_answer, write_own
from cotrain.formats.solutions import Solution

MATHEMATICS = {
    "The answer is $$42$$": "42",
    "The final answer is:\n$$\n42\n$$": "42",
    "The answer is $$\\boxed{42}$$.": "42",
    "The answer is\n\\[\n42\n\\]": "42",
    "The answer is: \\[42.\\] Done.": "42",
    "The answer is \\( 42 \\).": "42",
    "The answer is\n$$\n\\begin{aligned}x &= 42\\end{aligned}\n$$": "x = 42",
    "The answer is:\n\\begin{equation}\n42\n\\end{equation}": "42",
    "The answer is $\\begin{pmatrix}1 & 2\\end{pmatrix}$.": "\\begin{pmatrix}1 & 2\\end{pmatrix}",
    "### Final Answer\n\n$$42$$": "42",
    "**Final Answer**\n\n42": "42",
    "The answer is `42`.": "42",
    "The answer is:\n```\n42\n```": "42",
    "**Answer: $\\frac{1}{2}$**": "\\frac{1}{2}",
    "The answer is that she has \\boxed{39} apples.": "39",
    "The answer is $2^{10} = 1024$.": "2^{10} = 1024",
    "The answer is \\sqrt{2} + 1 meters in length.": "\\sqrt{2} + 1",
}
NUMBERS = {
    "The answer is −5.": "−5",
    "The answer is −$18.": "−$18",
    "The answer is 9{,}500 dollars a year.": "9{,}500",
    "The answer is 1e-3 of all that.": "1e-3",
    "The answer is \\frac{3}{4} of the cake.": "\\frac{3}{4}",
    "The answer is 2 1/2 cups of flour.": "2 1/2",
    "The answer is 3 \\times 10^8 meters per second.": "3 \\times 10^8",
    "The answer is exactly 42.": "42",
    "The answer is therefore 12.": "12",
    "The answer is as follows:\n12": "12",
    "The answer is 5 million dollars in total.": "5 million",
    "The answer is $5$ million.": "5 million",
    "The answer is $12.50 a head in all.": "$12.50",
    "The answer is 6, not 5.": "6",
    "The answer is not 5 but rather 6.": "6",
    "If 3 apples cost 6, the answer is 2.": "2",
    "You have 3 apples, so the answer is 3.": "3",
    "The answer is 2^{10} = 1024": "1024",
    "The answer is yes, because 3 > 2.": "yes",
    "The answer is 5, because 2 + 3 = 5.": "5",
    "Answer：42": "42",
    "The answer is：42": "42",
    "Final Answer\n------------\n42": "42",
}
SEVERAL = {
    "The answer is the point (3, 4).": "(3, 4)",
    "The answer is the interval [0, 1).": "[0, 1)",
    "The answer is the set {1, 2, 3}.": "{1, 2, 3}",
    "The answer is $(0, 1) \\cup (2, 3)$.": "(0, 1) \\cup (2, 3)",
    "The answer is x = 2 or x = 3.": "x = 2 or x = 3",
    "The answer is $x = 2$ or $x = 3$.": "x = 2 or x = 3",
    "The answer is y = 2x + 3.": "y = 2x + 3",
    "The answer is either 2 or 3 depending on the sign.": "2 or 3",
    "The answer is 5 hours and 30 minutes.": "5 hours and 30 minutes",
    "The answer is a ratio of 3:4 in total.": "3:4",
}
CLOSINGS = [
    "If you need another answer: I can help!",
    "Let me know if the answer is unclear.",
    "I hope this answer is helpful!",
    "This answer is correct.",
    "Do you want a different answer: just ask.",
    "Please check whether the answer is right.",
    "To check this answer: 5 + 5 = 10.",
    "There is no other answer: done.",
    "My answer is always honest.",
]


@pytest.mark.parametrize(("text", "answer"), [*MATHEMATICS.items(), *NUMBERS.items(), *SEVERAL.items()])
def test_what_a_phrase_gives(text, answer):
    assert answer_reader("phrase")(text) == answer
    assert answer_reader("phrase")(f"So.\n{text}\n") == answer


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("said", ["7", "Monday", "$$7$$"])
def test_a_closing_sentence_is_no_answer(closing, said):
    assert answer_reader("phrase")(f"The answer is {said}. {closing}") == said.strip("$")
    assert answer_reader("phrase")(f"The answer is {said}.\n\n{closing}") == said.strip("$")


def test_a_closing_sentence_alone_gives_none():
    for closing in CLOSINGS[:2]:
        assert free_solution(closing, "phrase") == ParseFailure(reason="no answer")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so x = −5.", "−5"),
        ("so –5 it is", "–5"),
        ("from 3–5 it is 7", "7"),
        ("10-3", "3"),
        ("so −$18 is left", "−$18"),
        ("so -\\$18 is left", "-\\$18"),
        ("so $18$ dollars", "18"),
        ("It costs \\boxed{9{,}500}", "9{,}500"),
        ("It is 9\\,500 in all", "9\\,500"),
        ("It is 1\u202f000\u202f000 in all", "1\u202f000\u202f000"),
        ("in 2020 500 people came", "500"),
        ("so 1e-3 of it", "1e-3"),
        ("about 2.5E6 people", "2.5E6"),
        ("so $3 \\times 10^{8}$ of it", "3 \\times 10^{8}"),
        ("so 3·10⁻² of it", "3·10⁻²"),
        ("so \\frac{3}{4} of it", "\\frac{3}{4}"),
        ("so $-\\dfrac{3}{4}$ of it", "-\\dfrac{3}{4}"),
        ("so 2\\frac{1}{2} of it", "2\\frac{1}{2}"),
        ("so 2 1/2 cups", "2 1/2"),
        ("so 2½ cups", "2½"),
        ("so 50\\% of it", "50\\%"),
        ("so 3:4 it is", "3:4"),
        ("so \u20115 it is", "\u20115"),
        ("It costs €1.234,56", "€1.234,56"),
        ("so 1.234.567 people", "1.234.567"),
        ("so 1'234'567 or 1_234_567 it is", "1_234_567"),
        ("so 12,34,567 rupees", "12,34,567"),
        ("It is 72, altogether.", "72"),
        ("It is x_1 and 1,234.5.", "1,234.5"),
    ],
)
def test_the_last_number_is_read_whole(text, number):
    assert answer_reader("last-number")(text) == number


@pytest.mark.parametrize("form", [*READERS, "tags"])
@pytest.mark.parametrize("cut", ["lines", "numbered", "paragraphs", "sentences", "tags"])
def test_a_written_solution_is_read_back(form, cut):
    for answer in ("42", "-5", "1/2", "1,234.5"):
        text = write_own(["3 boxes of 12 are 36.", "Then 36 + 6."], answer, form, cut)
        read = free_solution(text, form, cut)
        assert isinstance(read, Solution) and read.answer == answer
        assert [step.text for step in read.steps][:1] == ["3 boxes of 12 are 36."]


def test_what_a_sentence_would_not_give_back_is_written_in_a_box():
    for answer in ("the 3 apples of 4 friends", "x = 5", "(3, 4) and no more than that"):
        assert answer_reader("phrase")(write_answer(answer, "phrase")) == answer
