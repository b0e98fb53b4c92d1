#!/bin/bash
# Qwen3.6-35B-A3B with images on one 910C card.
unset ASCEND_LAUNCH_BLOCKING
export ASCEND_USE_FIA=1
export HCCL_OP_EXPANSION_MODE=AIV
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1
export SGLANG_ENABLE_SPEC_V2=1
export SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES=10
export SGLANG_SET_CPU_AFFINITY=1
export STREAMS_PER_DEVICE=32

python -m sglang.launch_server --model-path /models/qwen3.6-35b-a3b-w8a8 --host 127.0.0.1 --port 6688 \
    --tp-size 2 \
    --nnodes 1 \
    --attention-backend ascend \
    --device npu \
    --chunked-prefill-size -1 \
    --max-prefill-tokens 16384 \
    --disable-radix-cache \
    --trust-remote-code \
    --enable-prefill-delayer \
    --max-running-requests 50 \
    --max-mamba-cache-size 55 \
    --mem-fraction-static 0.8 \
    --cuda-graph-bs 2 4 8 12 16 20 24 28 32 36 40 44 48 50 \
    --enable-multimodal \
    --mm-attention-backend ascend_attn \
    --dtype bfloat16 \
    --mamba-ssm-dtype bfloat16 \
    --speculative-algorithm NEXTN \
    --speculative-num-steps 3 \
    --speculative-eagle-topk 1 \
    --speculative-num-draft-tokens 4
