#!/bin/bash
# DeepSeek-V4-Flash in FP8 on four 950 devices, prefill and decode in one server.
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export STREAMS_PER_DEVICE=32
export SGLANG_SET_CPU_AFFINITY=1
export TASK_QUEUE_ENABLE=1
export INF_NAN_MODE_FORCE_DISABLE=1
export HCCL_BUFFSIZE=1024
export DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ=1
export DEEPEP_NORMAL_LONG_SEQ_ROUND=16
export DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS=2048
export SGLANG_OPT_USE_OVERLAP_STORE_CACHE=False
export SGLANG_DSV4_FP4_EXPERTS=True
export SGLANG_OPT_BF16_FP32_GEMM_ALGO=torch
export SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1
export SGLANG_NPU_USE_MULTI_STREAM=1

python3 -m sglang.launch_server --model-path /models/deepseek-v4-flash \
    --page-size 128 --tp-size 4 --trust-remote-code --attention-backend dsv4 --device npu \
    --watchdog-timeout 9000 --mem-fraction-static 0.72 --max-running-requests 64 \
    --chunked-prefill-size 131072 --max-prefill-tokens 131072 \
    --cuda-graph-bs-decode 1 2 4 8 10 16 --kv-cache-dtype auto \
    --enable-dp-lm-head --disable-radix-cache --enable-dp-attention --dp-size 4 \
    --speculative-algorithm EAGLE --speculative-num-steps 2 --speculative-eagle-topk 1 \
    --speculative-num-draft-tokens 3 \
    --quantization fp8 --moe-a2a-backend deepep --deepep-mode auto
