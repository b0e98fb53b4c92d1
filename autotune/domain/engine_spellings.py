"""How the engines' command lines may be written, and which of their settings are no matter of a search space.

The spellings are those that the argument parsers of vLLM and SGLang declare. Of each group, the spelling that
a space uses is the one that counts there.
"""

from __future__ import annotations

SPELLINGS: tuple[tuple[str, ...], ...] = (
    ("--tensor-parallel-size", "--tp-size", "--tp", "-tp"),
    ("--pipeline-parallel-size", "--pp-size", "--pp", "-pp"),
    ("--data-parallel-size", "--dp-size", "--dp", "-dp"),
    ("--data-parallel-size-local", "-dpl"),
    ("--data-parallel-start-rank", "-dpr"),
    ("--data-parallel-rank", "-dpn"),
    ("--data-parallel-address", "-dpa"),
    ("--data-parallel-rpc-port", "-dpp"),
    ("--decode-context-parallel-size", "-dcp"),
    ("--prefill-context-parallel-size", "-pcp"),
    ("--enable-expert-parallel", "-ep"),
    ("--ep-size", "--expert-parallel-size", "--ep"),
    ("--attn-dp-size", "--attention-data-parallel-size"),
    ("--attn-cp-size", "--attention-context-parallel-size"),
    ("--moe-dp-size", "--moe-data-parallel-size"),
    ("--quantization", "-q"),
    ("--compilation-config", "-cc"),
    ("--speculative-config", "-sc"),
    ("--attention-config", "-ac"),
    ("--model", "--model-path", "-m"),
    ("--tokenizer", "--tokenizer-path"),
    ("--max-model-len", "--context-length"),
    ("--seed", "--random-seed"),
    ("--nnodes", "-n"),
    ("--node-rank", "-r"),
    ("--dist-init-addr", "--nccl-init-addr"),
)

DEPLOYMENT = frozenset(
    {
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--data-parallel-size-local",
        "--max-model-len",
    }
)
"""First spellings of what a study's deployment says."""

TEMPLATE_FLAGS = frozenset(
    {
        "--model",
        "--tokenizer",
        "--tokenizer-mode",
        "--host",
        "--port",
        "--uds",
        "--served-model-name",
        "--api-key",
        "--admin-api-key",
        "--trust-remote-code",
        "--download-dir",
        "--load-format",
        "--revision",
        "--chat-template",
        "--reasoning-parser",
        "--tool-call-parser",
        "--enable-auto-tool-choice",
        "--allowed-local-media-path",
        "--uvicorn-log-level",
        "--log-level",
        "--log-requests",
        "--disable-log-requests",
        "--disable-log-stats",
        "--no-enable-log-requests",
        "--disable-uvicorn-access-log",
        "--seed",
        "--device",
        "--skip-server-warmup",
        "--warmups",
        "--nnodes",
        "--node-rank",
        "--dist-init-addr",
        "--master-addr",
        "--master-port",
        "--headless",
        "--data-parallel-start-rank",
        "--data-parallel-rank",
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--data-parallel-backend",
        "--data-parallel-external-lb",
        "--data-parallel-hybrid-lb",
        "--base-gpu-id",
        "--disaggregation-mode",
        "--disaggregation-bootstrap-port",
        "--disaggregation-transfer-backend",
        "--disaggregation-ib-device",
        "--kv-transfer-config",
        "--speculative-draft-model-path",
        "--ssl-keyfile",
        "--ssl-certfile",
    }
)
"""First spellings of what the launch template, its host or its roles say."""

TEMPLATE_ENV = frozenset(
    {
        "PATH",
        "HOME",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "VLLM_USE_MODELSCOPE",
        "SGLANG_USE_MODELSCOPE",
        "VLLM_API_KEY",
        "VLLM_HOST_IP",
        "VLLM_PORT",
        "VLLM_DP_SIZE",
        "VLLM_DP_MASTER_IP",
        "VLLM_DP_MASTER_PORT",
        "VLLM_LOGGING_LEVEL",
        "HCCL_IF_IP",
        "HCCL_IF_BASE_PORT",
        "HCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME",
        "ASCEND_RT_VISIBLE_DEVICES",
        "ASCEND_VISIBLE_DEVICES",
        "ASCEND_MF_STORE_URL",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
    }
)
TEMPLATE_ENV_PREFIXES = ("HF_", "MODELSCOPE_", "TRANSFORMERS_", "ASCEND_PROCESS_", "ASCEND_GLOBAL_", "ASCEND_SLOG_")

# Flags that another one begins with: they are whole, and no shortened spelling of it.
WHOLE_FLAGS = frozenset(
    {
        "--enable-dp-attention",
        "--enable-eplb",
        "--enable-metrics",
        "--enable-lora",
        "--enable-multimodal",
        "--enable-prefix-caching",
        "--enable-chunked-prefill",
        "--enable-two-batch-overlap",
        "--enable-mixed-chunk",
        "--enable-torch-compile",
        "--enforce-eager",
        "--disable-cuda-graph",
        "--disable-radix-cache",
        "--cuda-graph-bs",
        "--cuda-graph-max-bs",
        "--dtype",
        "--kv-cache-dtype",
        "--max-num-batched-tokens",
        "--max-num-seqs",
        "--max-lora-rank",
        "--max-prefill-tokens",
        "--max-running-requests",
        "--attention-backend",
        "--speculative-draft-model-path",
        "--speculative-algorithm",
        "--page-size",
        "--block-size",
        "--stream-interval",
        "--swap-space",
        "--watchdog-timeout",
        "--init-expert-location",
        "--moe-runner-backend",
        "--load-balance-method",
        "--prefill-delayer",
    }
)

SECRETS = frozenset({"--api-key", "--admin-api-key"})
"""Their value is never shown."""

_FIRST = {spelling: group[0] for group in SPELLINGS for spelling in group}


def first_spelling(flag: str) -> str:
    """The name under which this module lists the flag."""
    return _FIRST.get(flag, flag)


def spellings_of(flag: str) -> tuple[str, ...]:
    """Every spelling of the flag, the given one among them."""
    return next((group for group in SPELLINGS if flag in group), (flag,))


def is_of_the_template(key: str) -> bool:
    """Whether a setting's key (`env NAME`, `--flag`, `--flag path`) belongs to the launch template."""
    if key.startswith("env "):
        name = key[4:]
        return name in TEMPLATE_ENV or name.startswith(TEMPLATE_ENV_PREFIXES)
    return first_spelling(key.split(" ", 1)[0]) in TEMPLATE_FLAGS
