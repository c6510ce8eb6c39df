"""Training conversations for a base that plays more roles than solver and verifier, addressed by (seed, index).

    refine_conversation      a solution and its review, answered by the revised solution
    meta_conversation        a solution and its review, answered by a verdict on the review's own verdicts
    self_check_conversation  a problem, answered by a solution and the solver's review of it
    plan_conversation        a question alone, answered by the word to search for
    digest_conversation      documents and what they are read for, answered by the sentences that matter
    bin_conversation         one bin of documents and the question, answered likewise: what MARS asks of System 1
    gathered_conversation    what digests bring, in any order, and the question, answered by a solver

How much their words are worth is set as for reviews (``words_corpus.Start``): under ("noisy", p) a verdict is turned
round with probability p. A revision obeys the review it is shown, right or wrong; a digest takes each sentence for what
it is not with probability ``missed``. All problems come from the training buckets of the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bases.words_corpus import Start, draw_training_problem, flip_probability, review_text
from cotrain.core.seeding import rng_of
from cotrain.data.word_problems import search_corpus
from cotrain.data.word_problems.corpus import as_conversation, final_verdict, reviewed_solution
from cotrain.data.word_problems.corrupt import Attempt, Habits, with_habits
from cotrain.data.word_problems.oracle import read_steps
from cotrain.data.word_problems.problem import Fact, Problem, compute, step_text
from cotrain.data.word_problems.source import WordProblems
from cotrain.data.word_problems.wording import NOUNS
from cotrain.formats.role_prompts import DIGEST, META, PLAN, REFINE, SELF_CHECK
from cotrain.formats.solutions import write_solution
from cotrain.prompts.templates import SOLVE, fill_template
from cotrain.recipes.mars.recipe import NOTHING, first_fit_decreasing

BIN = (2, 5)  # documents in a bin to be digested
BINS = (90, 120, 180, 360)  # characters of a bin that MARS has packed
NOISE = (0.25, 0.5, 1.0)  # irrelevant sentences for each relevant one

_KIND = {"+": "plus", "-": "minus", "*": "times"}  # of a relation as a step writes it

Conversation = list[dict[str, str]]


def refine_conversation(source: WordProblems, habits: Habits, start: Start, seed: int, index: int) -> Conversation:
    """A solution, right half of the time, and a review of it; the solution is revised as the review says."""
    rng = rng_of("words", "refine", seed, index)
    problem = draw_training_problem(source, rng)
    attempt = reviewed_solution(problem, rng, habits)
    flip = flip_probability(start)
    verdicts = tuple(ok != (rng.random() < flip) for ok in attempt.judgement.ok)
    final = final_verdict(problem, read_steps(problem, attempt.steps), verdicts, attempt.answer)
    review = review_text(problem, attempt.steps, attempt.answer, verdicts, final)
    shown = fill_template(REFINE, problem=problem.text, solution=attempt.text, review=review)
    return as_conversation(shown, revise_solution(problem, attempt, verdicts, final))


def revise_solution(problem: Problem, attempt: Attempt, verdicts: Sequence[bool], final: bool) -> str:
    """The solution with every step that ``verdicts`` [K] calls wrong worked out anew, or left out if nothing needs it.

    A step called right is copied, or taken up with the new numbers if it rests on one that has changed. If ``final``
    calls the answer wrong, steps that are missing are added. Right verdicts make every solution right.
    """
    known = dict(problem.given)  # values as the revision has them
    steps: list[str] = []
    changed: set[str] = set()  # nouns whose value is not the one the attempt went on with

    def work_out(noun: str) -> None:
        fact = problem.relations[noun]
        for operand in (fact.left, fact.right):
            if isinstance(operand, str) and operand not in known:
                work_out(operand)
        right = fact.right if isinstance(fact.right, int) else known[fact.right]
        known[noun] = compute(fact.operator, known[fact.left], right, problem.modulus)
        steps.append(step_text(fact, known, known[noun]))

    readings = read_steps(problem, attempt.steps)
    for text, reading, called_right in zip(attempt.steps, readings, verdicts, strict=True):
        step = reading.step
        if step is None:
            steps += [text] if called_right else []
            continue
        if not called_right and (step.target not in problem.needed or step.target in known):
            continue
        if not called_right:
            work_out(step.target)
        elif {step.left, step.right}.isdisjoint(changed):
            known[step.target] = step.result
            steps.append(text)
        else:
            values = {str(step.left): step.left_value, str(step.right): step.right_value} | known
            fact = Fact(target=step.target, kind=_KIND[step.operator], left=str(step.left), right=step.right)
            right = step.right if isinstance(step.right, int) else values[step.right]
            known[step.target] = compute(step.operator, values[fact.left], right, problem.modulus)
            steps.append(step_text(fact, values, known[step.target]))
        if known[step.target] != step.result:
            changed.add(step.target)
    if not final and problem.question not in known:
        work_out(problem.question)
    return write_solution(steps, str(known.get(problem.question, attempt.answer)))


def meta_conversation(source: WordProblems, habits: Habits, start: Start, seed: int, index: int) -> Conversation:
    """A review, half of the time with one or two verdicts on steps turned round, and whether all of them are right."""
    rng = rng_of("words", "meta", seed, index)
    problem = draw_training_problem(source, rng)
    attempt = reviewed_solution(problem, rng, habits)
    right = attempt.judgement.ok
    sound = rng.random() < 0.5
    wrong = () if sound else rng.sample(range(len(right)), min(len(right), 1 + int(rng.random() * 2)))
    verdicts = tuple(ok != (i in wrong) for i, ok in enumerate(right))
    final = final_verdict(problem, read_steps(problem, attempt.steps), verdicts, attempt.answer)
    review = review_text(problem, attempt.steps, attempt.answer, verdicts, final)
    verdict = sound != (rng.random() < flip_probability(start))
    prompt = fill_template(META, problem=problem.text, solution=attempt.text, review=review)
    return as_conversation(prompt, f"<final>{'CORRECT' if verdict else 'INCORRECT'}</final>")


def self_check_conversation(source: WordProblems, habits: Habits, start: Start, seed: int, index: int) -> Conversation:
    """A solver with these habits, and its own review."""
    rng = rng_of("words", "self check", seed, index)
    problem = draw_training_problem(source, rng)
    attempt = with_habits(problem, habits, rng)
    flip = flip_probability(start)
    verdicts = tuple(ok != (rng.random() < flip) for ok in attempt.judgement.ok)
    final = final_verdict(problem, read_steps(problem, attempt.steps), verdicts, attempt.answer)
    if start == "format":
        final = rng.random() < 0.5
    review = review_text(problem, attempt.steps, attempt.answer, verdicts, final)
    return as_conversation(fill_template(SELF_CHECK, problem=problem.text), attempt.text + review)


def plan_conversation(source: WordProblems, seed: int, index: int) -> Conversation:
    """A question, answered by a search for what it asks for."""
    problem = draw_training_problem(source, rng_of("words", "plan", seed, index))
    _, question = search_corpus.facts_and_question(problem.text)
    return as_conversation(fill_template(PLAN, question=question), f"<search> {problem.question}</search>")


def digest_conversation(source: WordProblems, missed: float, seed: int, index: int) -> Conversation:
    """Some of the documents that a search finds. Read for a question (even indexes), what matters are the problem's
    facts; read for a list of nouns, it is every sentence with one of them."""
    rng = rng_of("words", "digest", seed, index)
    problem = draw_training_problem(source, rng)
    facts, question = search_corpus.facts_and_question(problem.text)
    found_documents = search_corpus.search_documents(
        problem.text, problem.question if rng.random() < 0.9 else "nothing", rng
    )
    found_documents = found_documents[: BIN[0] + int(rng.random() * (BIN[1] - BIN[0] + 1))]
    all_sentences = [sentence for document in found_documents for sentence in search_corpus.split_sentences(document)]
    if index % 2 == 0:
        purpose, relevant = question, set(facts)
    else:
        named_nouns = sorted(search_corpus.long_words(" ".join(all_sentences)) & set(NOUNS))
        nouns = rng.sample(named_nouns, min(len(named_nouns), 2 + int(rng.random() * 3)))
        purpose = f"Facts about {', '.join(nouns)}."
        relevant = {s for s in all_sentences if not search_corpus.long_words(s).isdisjoint(nouns)}
    digest = [sentence for sentence in all_sentences if (sentence in relevant) != (rng.random() < missed)]
    return as_conversation(
        fill_template(DIGEST, documents="\n".join(found_documents), purpose=purpose), " ".join(digest) or NOTHING
    )


def bin_conversation(
    source: WordProblems, missed: float, seed: int, index: int, *, brief: bool = False
) -> Conversation:
    """One of the bins into which the documents of a search are packed, read for the question.

    ``brief``: one document alone, from which copying is learned soon; whole bins are learned by few of them beside it.
    """
    rng = rng_of("words", "bin", brief, seed, index)
    problem = draw_training_problem(source, rng)
    facts, question = search_corpus.facts_and_question(problem.text)
    query = problem.question if rng.random() < 0.95 else "nothing"
    found_documents = search_corpus.search_documents(problem.text, query, rng, noise=rng.choice(NOISE))
    packed = first_fit_decreasing([len(document) for document in found_documents], 1 if brief else rng.choice(BINS))
    bin_documents = [found_documents[i] for i in rng.choice(packed)]
    all_sentences = [sentence for document in bin_documents for sentence in search_corpus.split_sentences(document)]
    digest = [sentence for sentence in all_sentences if (sentence in facts) != (rng.random() < missed)]
    return as_conversation(
        fill_template(DIGEST, documents="\n".join(bin_documents), purpose=question), " ".join(digest) or NOTHING
    )


def gathered_conversation(source: WordProblems, habits: Habits, seed: int, index: int) -> Conversation:
    """A problem whose facts come in any order, and what a solver with these habits answers."""
    rng = rng_of("words", "gathered", seed, index)
    problem = draw_training_problem(replace(source, shuffle=1.0), rng)
    return as_conversation(fill_template(SOLVE, problem=problem.text), with_habits(problem, habits, rng).text)
