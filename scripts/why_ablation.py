#!/usr/bin/env python3
"""Measure what `larql why --ablate` does: the causal test behind its scores.

    python3 scripts/why_ablation.py NAME.vindex [--larql target/release/larql] [--features 10 50 200]

For each prompt the features that speak most for its answer are set to their means at the last
position. A table of the change of the answer's log-probability (nats), the divergence that the same
does after unrelated texts (KL, nats), and both for as many features spread over all layers. Where
the scores mean something, the first is large and the others are small.
"""

import argparse
import json
import statistics
import subprocess

PROMPTS = [
    ("The capital of France is", "Paris"),
    ("The Eiffel Tower is in the city of", "Paris"),
    ("Monday, Tuesday,", "Wednesday"),
    ("import numpy as", "np"),
    ("The opposite of hot is", "cold"),
    ("The largest planet in the solar system is", "Jupiter"),
    ("Berlin is the capital of", "Germany"),
    ("The Mona Lisa was painted by Leonardo da", "Vinci"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vindex")
    parser.add_argument("--larql", default="target/release/larql")
    parser.add_argument("--features", type=int, nargs="+", default=[10, 50, 200])
    args = parser.parse_args()
    for n in args.features:
        print(f"| {n} features | change | KL | control: change | KL |\n|---|---|---|---|---|")
        rows = []
        for prompt, answer in PROMPTS:
            command = [args.larql, "why", args.vindex, prompt, "-t", answer, "-k", "0"]
            out = subprocess.run([*command, "--ablate", str(n), "--json"], check=True, stdout=subprocess.PIPE)
            found = json.loads(out.stdout)["ablation"]
            before, control = found["log_prob_before"], found["control"]
            damage = statistics.mean(row["divergence"] for row in found["unrelated"])
            rows.append(
                (
                    found["log_prob_after"] - before,
                    damage,
                    control["log_prob_after"] - before,
                    control["mean_divergence"],
                )
            )
            print(f"| {prompt} → {answer} | " + " | ".join(f"{value:+.3f}" for value in rows[-1]) + " |")
        means = [statistics.mean(column) for column in zip(*rows)]
        print("| mean | " + " | ".join(f"{value:+.3f}" for value in means) + " |\n")


if __name__ == "__main__":
    main()
