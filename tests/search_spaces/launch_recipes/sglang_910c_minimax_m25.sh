#!/bin/bash
# MiniMax-M2.5 on one 910C host; the draft model brings its own Python package.
MODEL_PATH=/models/minimax-m2.5-w8a8
DRAFT_MODEL_PATH=/models/minimax-m2.5-eagle3
export PYTHONPATH=${DRAFT_MODEL_PATH}:$PYTHONPATH

export ASCEND_USE_FIA=1
export HCCL_BUFFSIZE=2048
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=204800
export SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1
export SGLANG_ENABLE_SPEC_V2=1
export SGLANG_EXTERNAL_MODEL_PACKAGE=custom_eagle3
export SGLANG_NPU_FUSED_MOE_MODE=2
export SGLANG_SET_CPU_AFFINITY=1
export STREAMS_PER_DEVICE=32
export TASK_QUEUE_ENABLE=1

python3 -m sglang.launch_server \
    --model-path $MODEL_PATH \
    --host 127.0.0.1 --port 6688 \
    --tp-size 16 \
    --enable-dp-attention \
    --dp-size 16 \
    --mem-fraction-static 0.53 \
    --max-running-requests 96 \
    --disable-radix-cache \
    --prefill-delayer-max-delay-passes 500 \
    --enable-prefill-delayer \
    --prefill-max-requests 3 \
    --chunked-prefill-size -1 \
    --max-prefill-tokens 8192 \
    --cuda-graph-bs 1 2 3 4 5 6 \
    --moe-a2a-backend ascend_fuseep \
    --deepep-mode auto \
    --quantization modelslim \
    --speculative-algorithm EAGLE3 \
    --speculative-draft-model-path $DRAFT_MODEL_PATH \
    --speculative-num-steps 3 \
    --speculative-eagle-topk 1 \
    --speculative-num-draft-tokens 4 \
    --speculative-draft-model-quantization unquant \
    --dtype bfloat16
