#!/bin/sh
# From text to two models that were trained together, on two cores and in less than an hour: tokenizer, pretraining,
# a chat model, a solver, its verifier, their co-training, and one page with the figures of all stages. `make speedrun`
# runs it. Interrupted, it goes on with the same command.
#
#   TEXT=book.txt           what the tokenizer and the base learn from
#   CHAT=chat.jsonl         conversations: rows of {"messages": [{"role", "content"}, …]}
#   QUESTIONS=DIR           train.jsonl and test.jsonl: rows of question and answer, worked solutions ending in #### 7
#   REVIEWS=reviews.jsonl   solutions: rows of problem, steps and label, the first wrong step or -1
#   CORE=DIR                tasks for the base, one file each
#   OUT=runs/speedrun       where everything goes; left out, the files above are made there by data.py
set -eu
here=$(dirname "$0")
out=${OUT:-runs/speedrun}
data=$out/data
format="--answer-format hash --steps-as lines --prompt $here/solver.txt"  # short prompts: this tokenizer cuts others up
fast="--optimizer muon --lr 0.01 --resume"

[ -f "$data/text.txt" ] || python "$here/data.py" "$data"
text=${TEXT:-$data/text.txt} chat=${CHAT:-$data/chat.jsonl} core=${CORE:-$data/core}
questions=${QUESTIONS:-$data/questions} reviews=${REVIEWS:-$data/reviews.jsonl}

# 1. A language model: bits per byte of held-out text, a sample, and a few tasks in the manner of CORE.
[ -d "$out/tokenizer" ] || cotrain tokenizer --data "$text" --vocab-size 768 --out "$out/tokenizer"
cotrain pretrain --data "$text" --tokenizer "$out/tokenizer" --tokens 2400000 \
    --optimizer muon --lr 0.01 --resume --out "$out/base"
cotrain eval "$out/base" --suite core --data "$core"/*.jsonl --out "$out/base-eval"

# 2. A model that chats, and from it one that solves.
cotrain sft --model "$out/base" --data "$chat" --tokens 400000 $fast --out "$out/chat"
cotrain teach solver --model "$out/chat" --data "$questions/train.jsonl" $format \
    --tokens 500000 $fast --out "$out/solver"
cotrain eval "$out/solver" --suite jsonl --data "$questions" $format --max-tokens 96 --samples 4 --out "$out/solver-eval"

# 3. A verifier of steps, from the solver.
cotrain teach verifier --model "$out/solver" --data "$reviews" --verifier-prompt "$here/verifier.txt" \
    --tokens 1000000 $fast --out "$out/verifier"

# 4. Both learn together.
if [ -f "$out/run/recipe.json" ]; then
    cotrain resume "$out/run"
else
    cotrain run tango --model "$out/solver" --verifier-model "$out/verifier" --data "$questions" $format \
        --verifier-prompt "$here/verifier.txt" --verdict tags --set roles.verifier.sampling.max_tokens=160 \
        --steps 78 --warmup 24 --ratio 2 1 --lr 8e-5 --verifier-lr 5e-4 --max-tokens 96 --out "$out/run"
fi
cotrain eval "$out/run" --suite jsonl --data "$questions" --samples 4

# 5. Talk with them, and one page.
cotrain chat "$out/chat" --once "What does a fox eat?"
cotrain chat "$out/run" --once "There are 14 horses. There are 4 times as many plums as horses. How many plums are there?"
cotrain report "$out"
