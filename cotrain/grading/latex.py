r"""Faster LaTeX parsing for math-verify, with the same syntax trees: ``install_parser`` puts it into this process.

The parser (ANTLR's, in plain Python) predicts each decision of its grammar with full context, called LL, and takes 15
ms for each term of a polynomial and seconds for ``((((((((((x))))))))))``. Here a text is read in two stages, as
ANTLR's authors advise (Parr, Harwell, Fisher 2014: Adaptive LL(*) Parsing):

1. prediction without context (SLL), which either ends in an error or reads what LL reads. Where it often goes wrong, it
   has context after all: at the ``d x`` of integrals, and at which of ``x``, ``x^2``, ``x_1``, ``x^2_1`` and ``x_1^2``
   begins here, which a look at the tokens behind the group mostly tells;
2. where that ends in an error, LL.

A text that needs more than ``STEPS`` of either is ``TooLarge``: three times what any answer of eleven benchmarks needs.

The look at the tokens knows one version of the grammar by heart, so ``install_parser`` first reads a few texts in both
ways; where they differ, that decision is left to LL.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from cotrain.grading.guards import TooLarge

STEPS = 100_000  # closures of configurations, about half a second of prediction; with full context one counts as five
SYMBOL = "atom_expr"  # the rule of a letter or symbol with an exponent, an index, or both
FACTOR = "unary"  # the rule of factors without a sign between them; d x may be two
BOTH = 1  # its alternative x^2_1
BOTH_TURNED = 2  # x_1^2
INDEX = 3  # x_1
EXPONENT = 4  # x^2
PROBES = ("x^2-1", "x_1", "x_{1}^{2}", "x^{2}_{1}")


def install_parser() -> None:
    """Once for a process. Raises ImportError where there is no such parser."""
    prediction = importlib.import_module("antlr4.atn.PredictionMode").PredictionMode
    reader: Any = importlib.import_module("latex2sympy2_extended.latex2sympy2")._Latex2Sympy
    create = reader.create_parser
    parse = reader.parse
    looking = True

    def create_parser(self: Any, text: str) -> Any:
        parser = create(self, text)
        parser._interp.closure_ = _limit_steps(parser._interp.closure_)
        if self.__dict__.get("simply"):
            parser._interp.predictionMode = prediction.SLL
            rules = {SYMBOL, FACTOR} if "\\int" in text else {SYMBOL}
            parser._interp.adaptivePredict = _context_prediction(parser, prediction, rules, looking)
        return parser

    def parse_simply(self: Any, text: str) -> Any:
        self.simply = True
        try:
            return parse(self, text)
        finally:
            self.simply = False

    def parse_twice(self: Any, text: str) -> Any:
        try:
            return parse_simply(self, text)
        except Exception:  # noqa: BLE001  whatever it is, the full prediction meets it again or reads on
            return parse(self, text)

    reader.create_parser = create_parser
    looking = all(_same_tree(reader, parse, parse_simply, text) for text in PROBES)
    reader.parse = parse_twice


def _same_tree(reader: Any, parse: Callable[..., Any], simply: Callable[..., Any], text: str) -> bool:
    """Whether both ways give the same tree, where the faster one gives any."""
    try:
        tree = simply(reader(is_real=True), text)
    except Exception:  # noqa: BLE001  then the full prediction is asked
        return True
    return bool(tree == parse(reader(is_real=True), text))


def _limit_steps(closure: Callable[..., None]) -> Callable[..., None]:
    """A parser's, which ends after so many steps."""
    left = STEPS

    def count_and_close(
        config: Any, configs: Any, busy: Any, predicates: bool, full: bool, depth: int, epsilon: bool
    ) -> None:
        nonlocal left
        left -= 5 if full else 1
        if left < 0:
            raise TooLarge
        closure(config, configs, busy, predicates, full, depth, epsilon)

    return count_and_close


def _context_prediction(parser: Any, prediction: Any, rules: set[str], looking: bool) -> Callable[..., int]:
    """The parser's prediction, with context in ``rules`` alone, and of symbols only where the tokens do not tell."""
    interpreter = parser._interp
    predict = interpreter.adaptivePredict
    rule_of_decision = {}  # decisions that are taken with context → their rules
    for number, state in enumerate(parser.atn.decisionToState):
        rule = parser.ruleNames[state.ruleIndex]
        if rule in rules:
            rule_of_decision[number] = rule

    def decide(tokens: Any, decision: int, context: Any) -> int:
        if decision not in rule_of_decision:
            return int(predict(tokens, decision, context))
        if looking and rule_of_decision[decision] == SYMBOL:
            seen = _next_alternative(tokens)
            if seen is not None:
                return seen
        interpreter.predictionMode = prediction.LL
        try:
            return int(predict(tokens, decision, context))
        finally:
            interpreter.predictionMode = prediction.SLL

    return decide


def _next_alternative(tokens: Any) -> int | None:
    """The alternative that begins at the next token; None where these tokens alone do not say."""
    first = tokens.LT(1).text
    if first not in ("^", "_"):
        return None
    depth = 0
    ahead = 2
    while True:
        token = tokens.LT(ahead)
        if token is None or token.type < 0:
            return None
        depth += (token.text == "{") - (token.text == "}")
        if depth <= 0:
            break
        ahead += 1

    if ahead == 2 and not (depth == 0 and token.text.isalnum()):
        return None
    behind = tokens.LT(ahead + 1)
    other_follows = behind is not None and behind.text == ("_" if first == "^" else "^")
    if other_follows and ahead == 2:
        return None  # in x^y_1 the index may be that of y
    if first == "^":
        return BOTH if other_follows else EXPONENT
    return BOTH_TURNED if other_follows else INDEX
