"""A llama of two layers with random weights, as a checkpoint that vLLM reads: nothing comes from a model hub.

`python -m tests.vllm_cpu.tiny_model FOLDER` writes it. Needs numpy alone, since the engine lives in an environment of
its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

LAYERS = 2
HIDDEN = 128
HEADS = 4
KV_HEADS = 2
FEED_FORWARD = 256
VOCABULARY = 1024  # the load's token ids end below 1000
CONTEXT = 2048

_SPECIAL = ("<unk>", "<s>", "</s>")
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS,
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_tiny_model(folder: Path, seed: int = 0) -> None:
    """The same seed gives the same weights. Every token but the first three is a word of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "unk_token": "<unk>",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "model_max_length": CONTEXT,
            }
        )
    )
    _write_safetensors(folder / "model.safetensors", _shapes(), seed)


def _tokenizer() -> dict[str, object]:
    vocabulary = {word: n for n, word in enumerate((*_SPECIAL, *(f"w{n}" for n in range(len(_SPECIAL), VOCABULARY))))}
    switches = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": n, "content": word, **switches} for n, word in enumerate(_SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    kv = KV_HEADS * HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    for layer in range(LAYERS):
        inner = f"model.layers.{layer}"
        shapes |= {
            f"{inner}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{inner}.self_attn.k_proj.weight": (kv, HIDDEN),
            f"{inner}.self_attn.v_proj.weight": (kv, HIDDEN),
            f"{inner}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{inner}.mlp.gate_proj.weight": (FEED_FORWARD, HIDDEN),
            f"{inner}.mlp.up_proj.weight": (FEED_FORWARD, HIDDEN),
            f"{inner}.mlp.down_proj.weight": (HIDDEN, FEED_FORWARD),
            f"{inner}.input_layernorm.weight": (HIDDEN,),
            f"{inner}.post_attention_layernorm.weight": (HIDDEN,),
        }
    return shapes


def _write_safetensors(path: Path, shapes: dict[str, tuple[int, ...]], seed: int) -> None:
    """The format: length of a JSON header in 8 bytes, the header, then the tensors one after another."""
    random = np.random.default_rng(seed)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    tensors = []
    end = 0
    for name, shape in shapes.items():
        values = np.ones(shape) if name.endswith("norm.weight") else random.normal(0, 0.1, shape)
        # bfloat16 is the upper half of float32.
        tensors.append((values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + len(tensors[-1])]}
        end += len(tensors[-1])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors))


if __name__ == "__main__":
    write_tiny_model(Path(sys.argv[1]))
