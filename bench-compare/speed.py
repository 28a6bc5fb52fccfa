#!/usr/bin/env python3
"""Tokens a second: larql against llama.cpp, same file, same threads, in turns.

    python3 bench-compare/speed.py MODEL.gguf NAME.vindex --larql target/release/larql

Each of --runs rounds measures both: a prompt of --prompt-tokens tokens, then --tokens greedy tokens
after --warmup that do not count. Shown are the medians over the rounds, the least and the most, and
the share of the read bandwidth that larql measures in its run. Nothing else should be running.
"""

import argparse
import json
import statistics
import subprocess
import time

import numpy as np

from llamacpp import Model


def llamacpp(model, args):
    """Tokens a second of the prompt and of the tokens after it."""
    rng = np.random.default_rng(1)
    ids = rng.integers(100, model.n_vocab - 100, args.prompt_tokens).tolist()
    model.clear()
    start = time.perf_counter()
    token = int(model.run(ids, 0, 1)[0].argmax())
    prefill = time.perf_counter() - start
    steps = []
    for i in range(args.warmup + args.tokens):
        start = time.perf_counter()
        # The logits are not copied: the best one is all that is wanted.
        token = int(model.run([token], len(ids) + i, 1, copy=False)[0].argmax())
        steps.append(time.perf_counter() - start)
    return args.prompt_tokens / prefill, 1 / statistics.mean(steps[args.warmup :])


def larql(args):
    command = [args.larql, "bench", args.vindex, "--json", "--quiet", "--threads", str(args.threads)]
    command += ["--prompt-tokens", str(args.prompt_tokens), "-n", str(args.tokens)]
    command += ["--warmup", str(args.warmup)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(ran.stdout)["backends"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("vindex")
    parser.add_argument("--larql", default="larql")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=8)
    args = parser.parse_args()
    model = Model(args.model, args.prompt_tokens + args.warmup + args.tokens, args.threads)
    llamacpp(model, args)
    found = {"prefill": ([], []), "decode": ([], [])}
    shares = []
    for _ in range(args.runs):
        for what, rate in zip(("prefill", "decode"), llamacpp(model, args)):
            found[what][1].append(rate)
        row = larql(args)
        found["prefill"][0].append(row["prefill"]["tokens_per_second"])
        found["decode"][0].append(row["decode"]["tokens_per_second"])
        shares.append(row["bandwidth_share"])
    print(f"{args.threads} threads, {args.runs} rounds, prompt of {args.prompt_tokens}; tok/s: median (least to most)")
    show = lambda rates: f"{statistics.median(rates):8.2f} ({min(rates):.2f} to {max(rates):.2f})"
    for what, (ours, theirs) in found.items():
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(f"{what:8} larql {show(ours)}   llama.cpp {show(theirs)}   ratio {ratio:.2f}")
    print(f"decode reads the weights at {statistics.median(shares):.0%} of the bandwidth (larql)")


if __name__ == "__main__":
    main()
