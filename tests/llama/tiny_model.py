"""A llama of two layers with random weights, written as a GGUF file: starts in a tenth of a second."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

LAYERS = 2
HIDDEN = 128
HEADS = 4  # 32 numbers a head: one block of the cache types q8_0 and q4_0
FEED_FORWARD = 256
VOCABULARY = 2048
CONTEXT = 4096
KV_BYTES_A_TOKEN = LAYERS * 2 * HIDDEN * 2  # keys and values in f16


def write_tiny_model(path: Path, seed: int = 0) -> None:
    """The same seed gives the same weights. Every token but the first 259 is a word of its own."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return random.normal(0, 0.1, shape).astype(np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    _add_tokens(writer)
    writer.add_tensor("token_embd.weight", weights(VOCABULARY, HIDDEN))
    writer.add_tensor("output.weight", weights(VOCABULARY, HIDDEN))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(HIDDEN, HIDDEN))
        for name in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(FEED_FORWARD, HIDDEN))
        writer.add_tensor(f"blk.{layer}.ffn_down.weight", weights(HIDDEN, FEED_FORWARD))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: gguf.GGUFWriter) -> None:
    special = [("<unk>", gguf.TokenType.UNKNOWN), ("<s>", gguf.TokenType.CONTROL), ("</s>", gguf.TokenType.CONTROL)]
    tokens = [*special, *((f"<0x{byte:02X}>", gguf.TokenType.BYTE) for byte in range(256))]
    tokens += [(f"\N{LOWER ONE EIGHTH BLOCK}w{n}", gguf.TokenType.NORMAL) for n in range(len(tokens), VOCABULARY)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([0.0] * VOCABULARY)
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
