r"""Faster LaTeX parsing for math-verify, with the same syntax trees: ``install_parser`` puts it into this process.

At each decision of its grammar the parser (ANTLR's, in plain Python) predicts which alternative the text has, with full
context, called LL. It takes 15 ms for each term of a polynomial, and seconds for ``((((((((((x))))))))))``. Here a text
is read in two stages, as ANTLR's authors advise (Parr, Harwell, Fisher 2014: Adaptive LL(*) Parsing):

1. prediction without context (SLL), which either ends in an error or reads what LL reads;
2. where it ends in an error, LL.

Two decisions on which SLL often ends in an error are made otherwise in the first stage, too:

- whether ``d x`` is the end of an integral: by LL;
- which of ``x``, ``x^2``, ``x_1``, ``x^2_1`` and ``x_1^2`` begins here: by the next tokens (``_next_alternative``),
  and by LL where these do not tell.

``_next_alternative`` knows the numbers of the alternatives in one version of the grammar, so ``install_parser`` first
reads a few texts with it and by LL alone; where they differ, it is not used.

A text that needs more than ``STEPS`` in either stage is ``TooLarge``: three times what any answer of eleven benchmarks
needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from cotrain.grading.guards import TooLarge

STEPS = 100_000  # calls of ANTLR's ``closure_``, half a second of prediction; one with full context counts as five
# Rules of the grammar.
SYMBOL = "atom_expr"  # a letter or symbol with an exponent, an index, or both
FACTOR = "unary"  # factors without a sign between them, such as d x
# Alternatives of the rule SYMBOL.
EXPONENT_AND_INDEX = 1  # x^2_1
INDEX_AND_EXPONENT = 2  # x_1^2
INDEX = 3  # x_1
EXPONENT = 4  # x^2
PROBES = ("x^2-1", "x_1", "x_{1}^{2}", "x^{2}_{1}")  # a text with each alternative


def install_parser() -> None:
    """Replace the methods of math-verify's parser in this process; to be called once. Raises ImportError where there is
    no such parser."""
    prediction = importlib.import_module("antlr4.atn.PredictionMode").PredictionMode
    reader: Any = importlib.import_module("latex2sympy2_extended.latex2sympy2")._Latex2Sympy
    create_original = reader.create_parser
    parse_by_ll = reader.parse
    tokens_tell = True  # whether ``_next_alternative`` is used

    def create_parser(self: Any, text: str) -> Any:
        parser = create_original(self, text)
        parser._interp.closure_ = _limit_steps(parser._interp.closure_)
        if self.__dict__.get("is_first_stage"):
            parser._interp.predictionMode = prediction.SLL
            rules = {SYMBOL, FACTOR} if "\\int" in text else {SYMBOL}
            parser._interp.adaptivePredict = _first_stage_prediction(parser, prediction, rules, tokens_tell)
        return parser

    def parse_first_stage(self: Any, text: str) -> Any:
        self.is_first_stage = True
        try:
            return parse_by_ll(self, text)  # which calls ``create_parser``
        finally:
            self.is_first_stage = False

    def parse_in_two_stages(self: Any, text: str) -> Any:
        try:
            return parse_first_stage(self, text)
        except Exception:  # noqa: BLE001  LL raises it again, or reads the text
            return parse_by_ll(self, text)

    reader.create_parser = create_parser
    tokens_tell = all(_same_tree(reader, parse_by_ll, parse_first_stage, text) for text in PROBES)
    reader.parse = parse_in_two_stages


def _same_tree(reader: Any, parse_by_ll: Callable[..., Any], parse_first_stage: Callable[..., Any], text: str) -> bool:
    """Whether the first stage gives the same tree as LL. It may also give none, as LL follows then."""
    try:
        tree = parse_first_stage(reader(is_real=True), text)
    except Exception:  # noqa: BLE001  whatever the parser raises
        return True
    return bool(tree == parse_by_ll(reader(is_real=True), text))


def _limit_steps(closure: Callable[..., None]) -> Callable[..., None]:
    """A parser's ``closure_``, which raises TooLarge after ``STEPS``."""
    steps_left = STEPS

    def count_and_close(
        config: Any, configs: Any, busy: Any, predicates: bool, full_context: bool, depth: int, epsilon: bool
    ) -> None:
        nonlocal steps_left
        steps_left -= 5 if full_context else 1
        if steps_left < 0:
            raise TooLarge
        closure(config, configs, busy, predicates, full_context, depth, epsilon)

    return count_and_close


def _first_stage_prediction(parser: Any, prediction: Any, rules: set[str], tokens_tell: bool) -> Callable[..., int]:
    """The parser's prediction by SLL, but by LL for the decisions of ``rules``; for those of SYMBOL by the next tokens
    first, if they tell."""
    interpreter = parser._interp
    predict = interpreter.adaptivePredict
    rule_of_decision = {}  # number of a decision that is not made by SLL → its rule
    for number, state in enumerate(parser.atn.decisionToState):
        rule = parser.ruleNames[state.ruleIndex]
        if rule in rules:
            rule_of_decision[number] = rule

    def decide(tokens: Any, decision: int, context: Any) -> int:
        if decision not in rule_of_decision:
            return int(predict(tokens, decision, context))
        if tokens_tell and rule_of_decision[decision] == SYMBOL:
            alternative = _next_alternative(tokens)
            if alternative is not None:
                return alternative
        interpreter.predictionMode = prediction.LL
        try:
            return int(predict(tokens, decision, context))
        finally:
            interpreter.predictionMode = prediction.SLL

    return decide


def _next_alternative(tokens: Any) -> int | None:
    """The alternative of SYMBOL whose exponent or index begins at the next token; None where the tokens do not tell."""
    first = tokens.LT(1).text  # LT(n): the n-th next token
    if first not in ("^", "_"):
        return None
    # The end of the exponent or index: a single token, or a group in braces.
    depth = 0
    end = 2
    while True:
        token = tokens.LT(end)
        if token is None or token.type < 0:
            return None
        depth += (token.text == "{") - (token.text == "}")
        if depth <= 0:
            break
        end += 1

    is_single_token = end == 2
    if is_single_token and not (depth == 0 and token.text.isalnum()):
        return None
    following = tokens.LT(end + 1)
    has_both = following is not None and following.text == ("_" if first == "^" else "^")
    if has_both and is_single_token:
        return None  # in x^y_1 the index may be that of y
    if first == "^":
        return EXPONENT_AND_INDEX if has_both else EXPONENT
    return INDEX_AND_EXPONENT if has_both else INDEX
