#!/usr/bin/env python3
"""How far larql's and llama.cpp's logits are from those of exact arithmetic. Gemma 3 only.

    pip install llama-cpp-python gguf numpy
    python3 bench-compare/logits.py MODEL.gguf NAME.vindex TEXT --larql target/release/larql

The reference is a forward pass in numpy over the dequantised weights (the `gguf` package), in float64
with no rounding of activations or of the cache. Both programs round activations to 8 bits and keep
keys and values in F16, so both differ from it; the margin at which their greedy tokens part can be no
smaller than that.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

from gemma3 import Reference
from llamacpp import Model


def larql_hidden(args, text):
    """The states after the final norm that `larql run --trace` saves, and their tokens."""
    with tempfile.TemporaryDirectory() as dir:
        path = os.path.join(dir, "t.safetensors")
        command = [args.larql, "run", args.vindex, "-", "-n", "1", "--trace", path, "--quiet"]
        command += ["--kv", args.kv]
        subprocess.run(command, check=True, input=text, capture_output=True, text=True)
        data = open(path, "rb").read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    start, end = header["ln_final"]["data_offsets"]
    values = np.frombuffer(data[8 + size + start : 8 + size + end], dtype="<f4")
    return json.loads(header["__metadata__"]["tokens"]), values.reshape(header["ln_final"]["shape"])


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("vindex")
    parser.add_argument("text")
    parser.add_argument("--larql", default="larql")
    parser.add_argument("--kv", default="f16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--characters", type=int, default=1200)
    args = parser.parse_args()
    text = open(args.text, encoding="utf-8").read()[: args.characters].rstrip("\n")
    model = Model(args.model, 2048, args.threads)
    ids = model.tokenize(text)
    ours, hidden = larql_hidden(args, text)
    if ours != ids:
        sys.exit("the text has other tokens in larql than in llama.cpp")
    reference = Reference(args.model)
    truth = reference.logits(reference.hidden(ids))
    found = {
        "larql": reference.logits(hidden.astype(np.float64)),
        "llama.cpp": model.run(ids, 0, len(ids)).astype(np.float64),
    }
    best = truth.argmax(-1)
    print(f"{len(ids)} positions, logits of {truth.shape[1]} tokens")
    print(f"{'':10} {'rms error':>10} {'99 %':>8} {'largest':>8} {'of best':>8} {'best token':>11} {'KL':>10}")
    for name, logits in found.items():
        # A shift of all logits changes nothing.
        error = logits - truth
        error -= error.mean(-1, keepdims=True)
        of_best = np.abs(error[np.arange(len(ids)), best]).mean()
        log_p, log_q = log_softmax(truth), log_softmax(logits)
        kl = (np.exp(log_p) * (log_p - log_q)).sum(-1).mean()
        same = (logits.argmax(-1) == best).mean()
        worst = np.abs(error).max(-1)
        print(
            f"{name:10} {np.sqrt((error**2).mean()):10.4f} {np.percentile(np.abs(error), 99):8.4f} "
            f"{worst.max():8.4f} {of_best:8.4f} {same:11.2%} {kl:10.6f}"
        )


if __name__ == "__main__":
    main()
