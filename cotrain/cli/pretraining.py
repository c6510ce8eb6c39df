"""``cotrain tokenizer`` and ``pretrain``, which make a model from nothing; ``paraphrase``, which has a model write
data; ``dpo`` and ``reward``, short names of runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.cli.common import add_column_flags, add_device_flag, add_json_flag, add_threads_flag, load_libraries
from cotrain.cli.flags import Parser, add_count, one_of, typed_flags
from cotrain.cli.stages import (
    add_lenient_flag,
    add_stage_flags,
    check_settings_unchanged,
    note_columns,
    note_quarantine,
    prepare_stage,
    quarantine_of,
    ranks_of,
    report_outcome,
    report_to,
    say_plan,
    set_up_machine,
    write_quarantine,
)
from cotrain.core.errors import ConfigError
from cotrain.core.verbosity import print_progress, tell_result
from cotrain.data.malformed_rows import Quarantine
from cotrain.storage.file_ops import filled_directory
from cotrain.storage.kept_work import claimed_directory

if TYPE_CHECKING:
    from cotrain.pretraining.ranks import Ranks

TEXT_HELP = "texts: .txt, .jsonl, .json, .csv or .parquet (default: the procedural corpus)"
NEW_MODEL_ARGUMENTS = ("tokenizer", "kind", "depth", "width", "vocab_size")  # not with --model, which has them already
WeightedCorpora = list[tuple[Any, int]]  # (corpus, weight): rows are drawn from each in proportion to its weight


def tokenizer(argv: Sequence[str]) -> int:
    """Train a byte-level BPE tokenizer with single-token digits."""
    parser = Parser(prog="cotrain tokenizer", description=tokenizer.__doc__)
    parser.add_argument("--out", required=True, metavar="DIR", help="a new directory")
    parser.add_argument("--data", metavar="FILE", help=TEXT_HELP)
    add_lenient_flag(parser)
    add_count(parser, "--vocab-size", "tokens of the tokenizer", default=640)
    add_count(parser, "--seed", "random seed of the procedural corpus", least=0, default=0)
    arguments = parser.parse_strictly(argv)

    with claimed_directory(Path(arguments.out)):
        return _train_tokenizer(arguments)


def _train_tokenizer(arguments: Any) -> int:
    load_libraries()
    from cotrain.pretraining.pretrain import sample_texts
    from cotrain.pretraining.tokenizer import train_tokenizer

    quarantine = quarantine_of(arguments)
    texts = _tokenizer_text(arguments.data, arguments.seed, quarantine)
    note_quarantine(quarantine, arguments.out)
    note_columns(texts)

    new_tokenizer = train_tokenizer(sample_texts(texts), arguments.vocab_size)
    with filled_directory(Path(arguments.out)) as folder:
        new_tokenizer.save_pretrained(folder)
        write_quarantine(quarantine, str(folder))
    print(f"tokenizer: {arguments.out}  ({len(new_tokenizer)} tokens)")
    return 0


def _training_text(file: str | None, seed: int, quarantine: Quarantine | None) -> WeightedCorpora:
    """The text that a model learns from: a file, or else the procedural corpus."""
    from cotrain.data.word_problems.corpus import pretraining_text
    from cotrain.data.word_problems.source import WordProblems
    from cotrain.pretraining.corpora import corpus_file, procedural_corpus

    if file is not None:
        return [(corpus_file(file, quarantine), 1)]
    source = WordProblems(operations=(2, 7))
    return [(procedural_corpus("words", lambda i: pretraining_text(source, seed, i)), 1)]


def _tokenizer_text(file: str | None, seed: int, quarantine: Quarantine | None) -> WeightedCorpora:
    """The text that a tokenizer learns from; with the procedural corpus it includes what roles say to each other."""
    from cotrain.data.word_problems.source import study_problems
    from cotrain.pretraining.corpora import practice_of

    text = _training_text(file, seed, quarantine)
    if file is not None:
        return text
    ((corpus, _),) = text
    return [(corpus, 4), *practice_of(study_problems((1, 9)), seed, stage="settle")]


def pretrain(argv: Sequence[str], ranks: Ranks | None = None) -> int:
    """Train a language model from nothing, or go on with one, on running text."""
    arguments = _parse_pretrain(argv, ranks)
    from cotrain.pretraining import pretrain as stage

    if ranks is None:
        check_settings_unchanged(arguments, start=arguments.model or "new", lr=arguments.lr, about={})
    quarantine = quarantine_of(arguments)
    corpus = _training_text(arguments.data, arguments.seed, quarantine)
    if ranks is None:
        note_quarantine(quarantine, arguments.out)
        note_columns(corpus)
        say_plan(arguments, corpus, arguments.lr)
    new_tokenizer, new_config = None, None
    if not arguments.model:
        new_tokenizer, new_config = _new_model(arguments)

    with (
        ranks_of(pretrain, argv, arguments, ranks) as own_rank,
        report_to(arguments, "pretrain", own_rank) as report,
    ):
        outcome = stage.pretrain(
            arguments.out,
            corpus=corpus,
            tokens=arguments.tokens,
            model=arguments.model,
            config=new_config,
            tokenizer=new_tokenizer,
            batch_tokens=arguments.batch_tokens,
            length=arguments.length,
            lr=arguments.lr,
            optimizer=arguments.optimizer,
            seed=arguments.seed,
            resume=arguments.resume,
            report=report,
            plan={"save_every": arguments.save_every},
            device=arguments.device,
            write_more=lambda: write_quarantine(quarantine, arguments.out),
            ranks=own_rank,
        )
    if not own_rank.is_first:
        return 0
    return report_outcome(outcome, arguments.out)


def _parse_pretrain(argv: Sequence[str], ranks: Ranks | None) -> Any:
    parser = Parser(prog="cotrain pretrain", description=pretrain.__doc__)
    text = parser.add_argument_group("what it learns")
    text.add_argument("--data", metavar="FILE", help=TEXT_HELP)
    add_lenient_flag(text)

    model = parser.add_argument_group("the model")
    model.add_argument("--model", help="go on from this model")
    model.add_argument("--tokenizer", metavar="DIR", help="tokenizer of a new model (default: one is trained)")
    model.add_argument("--kind", **one_of("kind of model", "llama", "qwen3"), default="llama", help="the architecture")
    add_count(model, "--depth", "layers of a new model", default=4)
    add_count(model, "--width", "width of the layers of a new model", default=128)
    add_count(model, "--vocab-size", "tokens of the tokenizer, if one is trained", default=640)

    add_stage_flags(parser, tokens=4_000_000, lr=3e-3)
    arguments = parser.parse_strictly(argv)
    _check_new_model(arguments, typed_flags(argv, parser))
    prepare_stage(parser, arguments, ranks)
    return arguments


def _check_new_model(arguments: Any, typed: Collection[str]) -> None:
    """Raise ConfigError for a flag that describes a new model or tokenizer, beside one that exists already."""
    if arguments.model:
        needless = [name for name in NEW_MODEL_ARGUMENTS if name in typed]
        if needless:
            flag = f"--{needless[0].replace('_', '-')}"
            raise ConfigError(
                f"cotrain pretrain: --model brings its own tokenizer and sizes; leave out {flag}",
                code="E_MODEL_WITH_TOKENIZER",
            )
    if arguments.tokenizer and "vocab_size" in typed:
        raise ConfigError(
            "cotrain pretrain: --tokenizer brings its own vocabulary; leave out --vocab-size",
            code="E_MODEL_WITH_TOKENIZER",
        )


def _new_model(arguments: Any) -> tuple[Any, Any]:
    """Tokenizer and configuration of a model that is made from nothing."""
    from cotrain.models.load import load_tokenizer
    from cotrain.pretraining import pretrain as stage
    from cotrain.pretraining.tokenizer import train_tokenizer

    if arguments.tokenizer:
        new_tokenizer = load_tokenizer(arguments.tokenizer)
    else:
        quarantine = quarantine_of(arguments)  # the file is read a second time; the caller reports its malformed rows
        texts = _tokenizer_text(arguments.data, arguments.seed, quarantine)
        new_tokenizer = train_tokenizer(stage.sample_texts(texts), arguments.vocab_size)
    config = stage.config_for(
        new_tokenizer,
        context=max(stage.CONTEXT, arguments.length),
        depth=arguments.depth,
        width=arguments.width,
        kind=arguments.kind,
    )
    return new_tokenizer, config


def paraphrase(argv: Sequence[str]) -> int:
    """Have a model say the problems of a file in other words, as `cotrain run co_rewarding --variant I` needs them."""
    parser = Parser(prog="cotrain paraphrase", description=paraphrase.__doc__)
    parser.add_argument("--data", required=True, metavar="FILE", help="problems: .jsonl, .json, .csv or .parquet")
    parser.add_argument("--model", required=True, help="the writer: directory or Hub name of a chat model")
    parser.add_argument("--out", required=True, metavar="FILE", help="a new .jsonl file")
    add_count(parser, "--tries", "tries for each problem, until one is kept", default=4, metavar="K")
    add_count(parser, "--seed", "random seed of what is written", least=0, default=0)
    add_column_flags(parser)
    add_json_flag(parser)
    add_device_flag(parser)
    add_threads_flag(parser)
    arguments = parser.parse_strictly(argv)

    set_up_machine(arguments)
    from cotrain.data.columns import ANY
    from cotrain.pretraining.paraphrases import paraphrase_file

    result = paraphrase_file(
        arguments.model,
        arguments.data,
        Path(arguments.out),
        columns=(arguments.question_column or ANY.question, arguments.answer_column or ANY.answer),
        tries=arguments.tries,
        device=arguments.device,
        seed=arguments.seed,
        say=print_progress,
    )
    tell_result(result)

    counts = "{written} written, {present} were there; {held_out} held-out problems need none".format(**result)
    print(f"paraphrases: {counts}")
    for reason, count in result["refused"].items():
        print(f"  {count} left out: {reason}")
    refused_place = f"; what was left out: {result['quarantine']}" if result["refused"] else ""
    print(f"problems: {arguments.out}{refused_place}")
    return 0


def dpo(argv: Sequence[str]) -> int:
    """Learn from preferences: ``cotrain run dpo`` by its short name."""
    from cotrain.cli.run import run

    return run(["dpo", *argv])


def reward(argv: Sequence[str]) -> int:
    """Train a reward model: ``cotrain run reward`` by its short name."""
    from cotrain.cli.run import run

    return run(["reward", *argv])
