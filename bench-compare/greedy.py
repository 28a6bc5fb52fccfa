#!/usr/bin/env python3
"""Greedy tokens: larql against llama.cpp, same file, same prompts.

    python3 bench-compare/greedy.py MODEL.gguf NAME.vindex --larql target/release/larql

For each of 20 prompts: 64 greedy tokens of both (fewer where the model ends the text), BOS where the
model wants one. Where they differ, the first difference is shown with its margin: how far apart the
two tokens' logits are in llama.cpp, and beside it the distribution of that margin over all tokens,
so that a near tie can be told from an error. With --exact (Gemma 3 only, needs the package `gguf`)
also what exact arithmetic says at that place. Exits 1 on a margin above --margin.

Both programs round activations to 8 bits, so each logit of either is off by about a tenth
(logits.py measures it): a margin below 0.5 is a tie to them.
"""

import argparse
import json
import subprocess
import sys

import llama_cpp as L
import numpy as np

from llamacpp import Model

PROMPTS = [
    "Paris is the capital of",
    "The largest planet in the solar system is",
    "import numpy as np\n\ndef softmax(x):\n",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Once upon a time, in a village by the sea,",
    "1, 2, 3, 5, 8, 13,",
    "Der schnelle braune Fuchs springt",
    "日本の首都は",
    "The chemical symbol for gold is",
    "<table>\n  <tr>\n    <td>",
    "La Révolution française a commencé en",
    "Q: How many legs does a spider have?\nA:",
    "The recipe needs flour, sugar, butter and",
    "SELECT name, age FROM users WHERE",
    "In 1969, the first human landed on the",
    "Dear Sir or Madam,\n\nI am writing to",
    "Столица России —",
    "The opposite of hot is",
    "To be, or not to be, that is the",
    "A neural network is a",
]


def greedy(model, ids, n):
    """The greedy tokens after ids, and the logits before each, by reference to the context."""
    model.clear()
    logits = model.run(ids, 0, 1)[0].copy()
    out, each = [], []
    for _ in range(n):
        token = int(logits.argmax())
        each.append(logits)
        if L.llama_vocab_is_eog(model.vocab, token):
            break
        out.append(token)
        logits = model.run([token], len(ids) + len(out) - 1, 1)[0].copy()
    return out, each


def larql(args, prompt):
    command = [args.larql, "run", args.vindex, prompt, "--json", "--quiet"]
    command += ["-n", str(args.tokens), "--threads", str(args.threads)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    row = json.loads(ran.stdout)
    return row["prompt_tokens"], [token["id"] for token in row["tokens"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("vindex")
    parser.add_argument("--larql", default="larql")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--margin", type=float, default=0.5)
    parser.add_argument("--exact", action="store_true", help="also run exact arithmetic at the first differences")
    args = parser.parse_args()
    model = Model(args.model, 512, args.threads)
    reference, right = None, [0, 0]
    if args.exact:
        from gemma3 import Reference

        reference = Reference(args.model)
    equal, failures, margins = 0, 0, []
    for prompt in PROMPTS:
        ids = model.tokenize(prompt)
        theirs, logits = greedy(model, ids, args.tokens)
        n_prompt, ours = larql(args, prompt)
        if n_prompt != len(ids):
            sys.exit(f"{prompt!r}: larql runs {n_prompt} tokens, llama.cpp {len(ids)}")
        for row in logits:
            second, best = np.partition(row, -2)[-2:]
            margins.append(float(best - second))
        pairs = zip(ours + [None], theirs + [None])
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is None:
            equal += 1
            verdict = f"equal, {len(ours)} tokens"
        else:
            row = logits[first]
            # A text that only one of them ends: its end token is the best that ends.
            ends = [t for t in range(model.n_vocab) if L.llama_vocab_is_eog(model.vocab, t)]
            token = ours[first] if first < len(ours) else max(ends, key=lambda t: row[t])
            margin = float(row.max() - row[token])
            failures += margin > args.margin
            verdict = (
                f"differs at token {first}: larql {model.text([token])!r}, "
                f"llama.cpp {model.text([int(row.argmax())])!r}, margin {margin:.4f}"
            )
            if reference:
                exact = reference.logits(reference.hidden(ids + theirs[:first])[-1])
                by = float(exact[token] - exact[row.argmax()])
                right[by < 0] += 1
                verdict += f"; exactly, {'llama.cpp' if by < 0 else 'larql'}'s is the larger by {abs(by):.4f}"
        print(f"{prompt[:36]!r:40} {verdict}", flush=True)
    if reference:
        print(f"of the first differences exact arithmetic agrees with larql in {right[0]}, with llama.cpp in {right[1]}")
    deciles = np.percentile(margins, [1, 5, 10, 50])
    print(f"{equal} of {len(PROMPTS)} equal; {failures} differ by more than {args.margin}")
    print("margins between the two best tokens: " + ", ".join(
        f"{p} % below {m:.3f}" for p, m in zip([1, 5, 10, 50], deciles)))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
