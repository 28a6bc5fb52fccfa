#!/usr/bin/env python3
"""Compares larql's Q4_K and Q6_K quantisers with llama.cpp's: RMSE and speed, one thread each.

    python3 scripts/compare_quantizers.py MODEL.gguf [--dtypes q4_k,q6_k] [--rows N] [--only REGEX]

Needs numpy, gguf and llama-cpp-python (its libggml-base), and cargo. Every matrix of MODEL is
dequantised, flattened, cut to whole super-blocks, quantised by both (llama.cpp without an
importance matrix) and dequantised by `gguf`. Of matrices with more than N rows (default 16384)
the first N are taken. Two synthetic tensors are added: normal, and Student's t with 3 degrees of
freedom. Exits with 1 where larql's RMSE is above llama.cpp's on any tensor.
"""
import argparse
import collections
import ctypes
import pathlib
import re
import subprocess
import sys
import time

import gguf
import llama_cpp
import numpy as np

ROOT = pathlib.Path(__file__).parents[1]


def ggml():
    lib = next((pathlib.Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.*"))
    lib = ctypes.CDLL(str(lib))
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
                                        ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
                                        ctypes.c_void_p]
    return lib


def by_llama(lib, dtype, values):
    length, size = gguf.GGML_QUANT_SIZES[dtype]
    out = np.empty(values.size // length * size, dtype=np.uint8)
    started = time.perf_counter()
    lib.ggml_quantize_chunk(int(dtype), values.ctypes.data, out.ctypes.data, 0, 1, values.size, None)
    return out, time.perf_counter() - started


def by_larql(program, dtype, values):
    done = subprocess.run([program, dtype.name], input=values.tobytes(), capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode())
    rate = float(re.search(r"([\d.]+) million", done.stderr.decode())[1])
    return np.frombuffer(done.stdout, dtype=np.uint8), values.size / rate / 1e6


def tensors(model, rows, only):
    for t in gguf.GGUFReader(model).tensors:
        if len(t.shape) < 2 or not re.search(only, t.name):
            continue
        data = t.data[:rows]
        values = gguf.dequantize(data, t.tensor_type).astype(np.float32).ravel()
        role = re.sub(r"blk\.\d+\.", "", t.name).removesuffix(".weight")
        yield f"{role} ({t.tensor_type.name.lower()})", t.name, values[:values.size // 256 * 256]
    rng = np.random.default_rng(7)
    yield "normal", "normal", rng.normal(0, 0.02, 1 << 20).astype(np.float32)
    yield "Student t, 3", "t3", (rng.standard_t(3, 1 << 20) * 0.02).astype(np.float32)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("model")
    args.add_argument("--dtypes", default="q4_k,q6_k")
    args.add_argument("--rows", type=int, default=16384)
    args.add_argument("--only", default="", help="a regular expression on tensor names")
    args = args.parse_args()
    subprocess.run(["cargo", "build", "-q", "--release", "-p", "larql-compute", "--example",
                    "quantize"], cwd=ROOT, check=True)
    target = pathlib.Path(__import__("os").environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "release/examples/quantize"
    lib = ggml()
    dtypes = [gguf.GGMLQuantizationType[d.upper()] for d in args.dtypes.split(",")]
    sums = collections.defaultdict(lambda: np.zeros(6))  # per (dtype, role)
    worst = collections.defaultdict(float)
    failed = []
    for role, name, values in tensors(args.model, args.rows, args.only):
        exact = values.astype(np.float64)
        for dtype in dtypes:
            row = [exact.size, (exact ** 2).sum()]
            for blocks, seconds in (by_larql(program, dtype, values), by_llama(lib, dtype, values)):
                back = gguf.dequantize(blocks.reshape(1, -1), dtype).ravel()
                row += [((back - exact) ** 2).sum(), seconds]
            sums[dtype, role] += row
            ratio = np.sqrt(row[2] / row[4]) if row[4] else (1.0 if row[2] == 0 else np.inf)
            worst[dtype, role] = max(worst[dtype, role], ratio)
            if ratio > 1:
                failed.append(f"{dtype.name} {name}: {ratio:.4f}")
    print("| to | tensors | RMSE / RMS, larql | llama.cpp | ratio | worst tensor | larql M/s | llama.cpp M/s |")
    print("|---|---|---|---|---|---|---|---|")
    for (dtype, role), (n, power, ours, our_s, theirs, their_s) in sorted(
            sums.items(), key=lambda item: (item[0][0], item[0][1])):
        print(f"| {dtype.name.lower()} | {role} | {np.sqrt(ours / power):.5f} | "
              f"{np.sqrt(theirs / power):.5f} | {np.sqrt(ours / theirs):.4f} | "
              f"{worst[dtype, role]:.4f} | {n / our_s / 1e6:.1f} | {n / their_s / 1e6:.1f} |")
    for line in failed:
        print("worse than llama.cpp:", line)
    sys.exit(bool(failed))


main()
