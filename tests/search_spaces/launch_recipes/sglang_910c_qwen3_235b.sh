#!/bin/bash
# Qwen3-235B-A22B in int8 on one 910C host, fused expert dispatch.
MODEL_PATH=/models/qwen3-235b-a22b-w8a8
DRAFT_MODEL_PATH=/models/qwen3-235b-eagle3
unset ASCEND_LAUNCH_BLOCKING

export GLOO_SOCKET_IFNAME=eth0
export HCCL_BUFFSIZE=570
export HCCL_OP_EXPANSION_MODE=AIV
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=188416
export SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1
export SGLANG_ENABLE_SPEC_V2=1
export SGLANG_PREFILL_DELAYER_MAX_DELAY_PASSES=100
export SGLANG_SCHEDULER_DECREASE_PREFILL_IDLE=1

python3 -m sglang.launch_server \
    --model-path $MODEL_PATH \
    --host 127.0.0.1 --port 6688 \
    --nnodes 1 \
    --node-rank 0 \
    --attention-backend ascend \
    --device npu \
    --max-running-requests 432 \
    --context-length 8192 \
    --dtype bfloat16 \
    --chunked-prefill-size 94208 \
    --max-prefill-tokens 458880 \
    --sampling-backend ascend \
    --ep-dispatch-algorithm static \
    --disable-radix-cache \
    --moe-a2a-backend ascend_fuseep \
    --fuseep_mode 2 \
    --speculative-algorithm EAGLE3 \
    --speculative-draft-model-path $DRAFT_MODEL_PATH \
    --speculative-num-steps 3 \
    --speculative-eagle-topk 1 \
    --speculative-num-draft-tokens 4 \
    --speculative-draft-model-quantization unquant \
    --tp 16 \
    --dp-size 16 \
    --enable-dp-attention \
    --enable-dp-lm-head \
    --mem-fraction-static 0.8 \
    --cuda-graph-bs 1 2 4 8 16 20 24 26 27
