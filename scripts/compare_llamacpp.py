#!/usr/bin/env python3
"""Check that a GGUF which larql wrote is the same model to llama.cpp as its original.

    pip install llama-cpp-python transformers torch
    python3 scripts/compare_llamacpp.py ORIGINAL NAME.vindex/model.gguf [--tokens 32]

ORIGINAL is a GGUF, run by llama.cpp, or a Hugging Face directory, run by transformers in float32.
Compares token ids and greedy continuations for a handful of prompts. Greedy tokens must be equal;
where they differ, the margin between the two best logits at the first difference is printed, so that
a tie broken by rounding (another dtype) can be told from a fault. Exits 1 on any difference whose
margin exceeds --margin.
"""

import argparse
import os
import sys

import numpy as np
from llama_cpp import Llama

PROMPTS = [
    "Paris is the capital of",
    "The largest planet in the solar system is",
    "import numpy as",
    "def fibonacci(n):\n    if n < 2:\n        return",
    "Once upon a time, in a village by the sea,",
    "1, 2, 3, 5, 8, 13,",
    "Der schnelle braune Fuchs springt",
    "日本の首都は",
    "The chemical symbol for gold is",
    "<table>\n  <tr>\n    <td>",
]


def greedy(model, prompt, n):
    """Token ids of the prompt, the greedy continuation, and the margin of each step."""
    ids = model.tokenize(prompt.encode(), add_bos=True, special=True)
    model.reset()
    model.eval(ids)
    out, margins = [], []
    for _ in range(n):
        logits = np.ctypeslib.as_array(
            model._ctx.get_logits(), shape=(model.n_vocab(),)
        ).astype(np.float64)
        best, second = np.argpartition(logits, -2)[-2:][::-1]
        if logits[second] > logits[best]:
            best, second = second, best
        out.append(int(best))
        margins.append(float(logits[best] - logits[second]))
        model.eval([int(best)])
    return ids, out, margins


def greedy_transformers(path, n):
    """The same for all prompts, by transformers in float32 from a Hugging Face directory."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    results = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        out = model.generate(
            ids, max_new_tokens=n, min_new_tokens=n, do_sample=False,
            return_dict_in_generate=True, output_logits=True,
        )
        best = [step[0].topk(2).values for step in out.logits]
        margins = [float(top[0] - top[1]) for top in best]
        results.append((ids[0].tolist(), out.sequences[0, ids.shape[1]:].tolist(), margins))
    return results


def greedy_llamacpp(path, n):
    model = Llama(path, n_ctx=256, n_threads=2, verbose=False)
    return [greedy(model, prompt, n) for prompt in PROMPTS]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original")
    parser.add_argument("candidate")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--margin", type=float, default=0.05)
    args = parser.parse_args()
    results = []
    for path in (args.original, args.candidate):
        run = greedy_transformers if os.path.isdir(path) else greedy_llamacpp
        results.append(run(path, args.tokens))
    failures = 0
    for prompt, (ids_a, out_a, margin), (ids_b, out_b, _) in zip(PROMPTS, *results):
        first = next((i for i, (a, b) in enumerate(zip(out_a, out_b)) if a != b), None)
        if ids_a != ids_b:
            failures += 1
            verdict = "the prompt tokenises differently"
        elif first is None:
            verdict = f"equal, {args.tokens} tokens"
        else:
            verdict = f"differs at token {first}, margin {margin[first]:.4f}"
            failures += margin[first] > args.margin
        print(f"{prompt[:40]!r:44} {verdict}")
    print(f"{len(PROMPTS) - failures} passed, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
