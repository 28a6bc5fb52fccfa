#!/usr/bin/env python3
"""The perplexity of a text: larql against llama.cpp, same file, same tokens, same windows.

    python3 bench-compare/perplexity.py MODEL.gguf NAME.vindex TEXT --larql target/release/larql

Both cut the text as llama.cpp's `perplexity` does: windows of --window tokens without overlap, the
first token of each replaced by the BOS where the model wants one; of the second half of a window
every token is foretold from all before it. Exits 1 where the perplexities differ by more than
--tolerance (relative).
"""

import argparse
import json
import math
import subprocess
import sys

import numpy as np

from llamacpp import Model


def llamacpp(path, text, window, threads):
    """Tokens of the text, tokens scored, and the mean of -ln p, in float64 from llama.cpp's
    logits."""
    model = Model(path, window, threads)
    tokens = model.tokenize(text)
    total, scored = 0.0, 0
    for start in range(0, len(tokens) - window + 1, window):
        ids = list(tokens[start : start + window])
        if model.bos is not None:
            ids[0] = model.bos
        model.clear()
        # Position p foretells p + 1; nothing is foretold from the last.
        logits = model.run(ids[:-1], 0, window - 1 - window // 2)
        for row, token in zip(logits, ids[window // 2 + 1 :]):
            row = row.astype(np.float64)
            top = row.max()
            total += top + math.log(np.exp(row - top).sum()) - row[token]
            scored += 1
        print(f"\r{start + window} of {len(tokens)} tokens", end="", file=sys.stderr)
    print(file=sys.stderr)
    return len(tokens), scored, total / scored


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("vindex")
    parser.add_argument("text")
    parser.add_argument("--larql", default="larql")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tolerance", type=float, default=0.005)
    args = parser.parse_args()
    command = [args.larql, "bench", args.vindex, "--perplexity", args.text, "--json", "--quiet"]
    command += ["--window", str(args.window), "--threads", str(args.threads)]
    ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    with open(args.text, encoding="utf-8", newline="") as file:
        tokens, scored, nll = llamacpp(args.model, file.read(), args.window, args.threads)
    if (ours["tokens"], ours["scored"]) != (tokens, scored):
        sys.exit(f"larql has {ours['tokens']} tokens and scores {ours['scored']}, llama.cpp {tokens} and {scored}")
    theirs = math.exp(nll)
    difference = ours["perplexity"] / theirs - 1
    print(f"{tokens} tokens, {scored} scored")
    print(f"larql      {ours['perplexity']:.4f}")
    print(f"llama.cpp  {theirs:.4f}")
    print(f"difference {difference:+.3%} (standard error of either: {ours['error'] / ours['perplexity']:.1%})")
    return abs(difference) > args.tolerance


if __name__ == "__main__":
    sys.exit(main())
