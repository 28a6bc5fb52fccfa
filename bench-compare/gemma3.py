"""Gemma 3 in exact arithmetic: what larql and llama.cpp are both an approximation of."""

import functools

import gguf
import numpy as np


class Reference:
    """A Gemma 3 GGUF, dequantised by the `gguf` package and run in float64: activations and the
    cache are not rounded."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields[f"gemma3.{name}"].contents()
        self.n_layers, self.heads = field("block_count"), field("attention.head_count")
        self.width, self.eps = field("attention.key_length"), field("attention.layer_norm_rms_epsilon")
        self.kv_heads = field("attention.head_count_kv")
        self.window, self.theta = field("attention.sliding_window"), field("rope.freq_base")
        self.tensors = {t.name: t for t in reader.tensors}

    @functools.lru_cache(maxsize=None)
    def weight(self, name, layer=None):
        tensor = self.tensors[f"{name}.weight" if layer is None else f"blk.{layer}.{name}.weight"]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type)

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rotate(self, x, theta):
        """x: [n, heads, width], halves rotated against each other."""
        half = self.width // 2
        angles = np.arange(len(x))[:, None] / theta ** (np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def hidden(self, ids):
        """The states after the final norm, [n, hidden_size]."""
        embedding = self.weight("token_embd")
        n, group = len(ids), self.heads // self.kv_heads
        x = embedding[ids].astype(np.float64) * np.sqrt(embedding.shape[1])
        distance = np.arange(n)[:, None] - np.arange(n)[None]
        for i in range(self.n_layers):
            w = lambda name: self.weight(name, i)
            full = i % 6 == 5
            theta = self.theta if full else 10000.0
            h = self.norm(x, w("attn_norm"))
            q = (h @ w("attn_q").T).reshape(n, self.heads, self.width)
            k = (h @ w("attn_k").T).reshape(n, self.kv_heads, self.width)
            v = (h @ w("attn_v").T).reshape(n, self.kv_heads, self.width)
            q = self.rotate(self.norm(q, w("attn_q_norm")), theta)
            k = self.rotate(self.norm(k, w("attn_k_norm")), theta)
            k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
            scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.width)
            seen = (distance >= 0) & (full | (distance < self.window))
            scores = np.where(seen, scores, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            out = np.einsum("hqk,khd->qhd", p, v).reshape(n, -1) @ w("attn_output").T
            x = x + self.norm(out, w("post_attention_norm"))
            h = self.norm(x, w("ffn_norm"))
            gate, up = h @ w("ffn_gate").T, h @ w("ffn_up").T
            gelu = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
            x = x + self.norm((gelu * up) @ w("ffn_down").T, w("post_ffw_norm"))
        return self.norm(x, self.weight("output_norm"))

    def logits(self, hidden):
        """[n, hidden_size] to [n, vocab_size]."""
        return hidden @ self.weight("token_embd").T
