"""llama.cpp through the low-level API of llama-cpp-python: tokens in, logits out."""

import ctypes

import llama_cpp as L
import numpy as np


@L.llama_log_callback
def _quiet(level, text, user):
    pass


class Model:
    """A GGUF file with one context; keys and values in F16, everything else as llama.cpp does it
    by default."""

    def __init__(self, path, n_ctx, threads):
        L.llama_log_set(_quiet, None)
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = L.llama_context_default_params()
        params.n_ctx = params.n_batch = n_ctx
        params.n_ubatch = min(n_ctx, 512)
        params.n_threads = params.n_threads_batch = threads
        self.context = L.llama_init_from_model(self.model, params)
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)
        self.bos = L.llama_vocab_bos(self.vocab) if L.llama_vocab_get_add_bos(self.vocab) else None
        self.batch = L.llama_batch_init(n_ctx, 0, 1)

    def tokenize(self, text):
        """The ids of a text, with the BOS where the model wants one; control tokens in it are
        plain text."""
        data = text.encode()
        ids = (L.llama_token * (len(data) + 8))()
        n = L.llama_tokenize(self.vocab, data, len(data), ids, len(ids), True, False)
        if n < 0:
            raise SystemExit("llama.cpp cannot tokenise the text")
        return list(ids[:n])

    def text(self, ids):
        """What ids stand for."""
        ids = (L.llama_token * len(ids))(*ids)
        out = ctypes.create_string_buffer(64 * len(ids) + 64)
        n = L.llama_detokenize(self.vocab, ids, len(ids), out, len(out), False, True)
        return out.raw[: max(n, 0)].decode(errors="replace")

    def clear(self):
        """Empties the cache."""
        L.llama_memory_clear(L.llama_get_memory(self.context), True)

    def run(self, ids, first, wanted, copy=True):
        """Adds `ids` at positions from `first` on; the logits of the last `wanted`,
        [wanted, n_vocab]: as an array of their own, or as views that the next run overwrites."""
        batch = self.batch
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i] = token, first + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i >= len(ids) - wanted
        if L.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode fails")
        rows = range(len(ids) - wanted, len(ids))
        shape = (self.n_vocab,)
        get = lambda i: np.ctypeslib.as_array(L.llama_get_logits_ith(self.context, i), shape=shape)
        found = [get(i) for i in rows]
        return np.stack(found) if copy else found
