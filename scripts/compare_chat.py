#!/usr/bin/env python3
"""Check conversations of `larql chat` against Jinja2 and llama.cpp.

    pip install llama-cpp-python jinja2
    python3 scripts/compare_chat.py MODEL.gguf NAME.vindex --larql target/release/larql [TEMPLATE ...]

TEMPLATE are files with chat templates [default: two of tests/data/chat]. For every turn the prompt
is rendered by Jinja2 and run anew by llama.cpp, while larql runs only what is new. The number of
tokens of every prompt and the greedy replies must be equal; where a reply differs, the margin of
llama.cpp's two best logits at the first difference is printed. Exits 1 on any other number of
tokens, and on a difference whose margin exceeds --margin.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from llama_cpp import Llama

DATA = Path(__file__).parents[1] / "tests" / "data" / "chat"
QUESTIONS = [
    "What is the capital of France?",
    "And of Italy?",
    "Who wrote Hamlet?",
    "How many legs has a spider?",
    "Tell me about the sea.",
]


def greedy(model, ids, n):
    """The greedy continuation, and the margin of each step."""
    model.reset()
    model.eval(ids)
    out, margins = [], []
    for _ in range(n):
        logits = np.ctypeslib.as_array(model._ctx.get_logits(), shape=(model.n_vocab(),)).astype(np.float64)
        second, best = np.sort(logits)[-2:]
        out.append(int(np.argmax(logits)))
        margins.append(float(best - second))
        model.eval([out[-1]])
    return out, margins


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("vindex")
    parser.add_argument("templates", nargs="*", default=[DATA / "questions.jinja", DATA / "gemma.jinja"])
    parser.add_argument("--larql", default="larql")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--margin", type=float, default=0.5)
    args = parser.parse_args()
    model = Llama(args.model, n_ctx=4096, verbose=False)
    bos, eos = (model._model.token_get_text(t) for t in (model.token_bos(), model.token_eos()))
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    failed = False
    for path in args.templates:
        template = environment.from_string(Path(path).read_text())
        command = [args.larql, "chat", args.vindex, "--template", path, "-n", str(args.tokens), "--json", "--quiet"]
        out = subprocess.run(command, input="\n".join(QUESTIONS), text=True, capture_output=True)
        if out.returncode != 0:
            sys.exit(out.stderr)
        messages, equal = [], 0
        for question, line in zip(QUESTIONS, out.stdout.splitlines(), strict=True):
            answer = json.loads(line)
            messages.append({"role": "user", "content": question})
            text = template.render(messages=messages, add_generation_prompt=True, bos_token=bos, eos_token=eos)
            ids = model.tokenize(text.encode(), add_bos=not text.startswith(bos), special=True)
            found = answer["prompt_tokens"] + answer["cached_tokens"]
            if found != len(ids):
                print(f"{path}: {question!r}: a prompt of {found} tokens, in llama.cpp {len(ids)}")
                failed = True
            tokens = [token["id"] for token in answer["tokens"]]
            expected, margins = greedy(model, ids, len(tokens))
            at = next((i for i, (a, b) in enumerate(zip(tokens, expected)) if a != b), None)
            if at is None:
                equal += 1
            else:
                print(f"{path}: {question!r}: token {at} differs, margin {margins[at]:.3f}")
                failed |= margins[at] > args.margin
            messages.append({"role": "assistant", "content": answer["text"]})
        print(f"{path}: {equal} of {len(QUESTIONS)} replies are equal")
    sys.exit(failed)


if __name__ == "__main__":
    main()
