#!/bin/bash
# GLM-5.2 in MXFP8 on eight 950 devices, prefill and decode in one server.
export SGLANG_SET_CPU_AFFINITY=1
export STREAMS_PER_DEVICE=32
export SGLANG_ENABLE_SPEC_V2=1
export SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1
export HCCL_BUFFSIZE=1000
export DEEPEP_NORMAL_LONG_SEQ_ROUND=72
export DEEPEP_NORMAL_LONG_SEQ_PER_ROUND_TOKENS=1024
export DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ=1
export DEEP_NORMAL_MODE_USE_INT8_QUANT=1

python3 -m sglang.launch_server --model-path /models/glm-5.2-w8a8c8-mxfp8 \
    --attention-backend ascend --device npu --tp-size 8 --nnodes 1 --dp-size 4 \
    --enable-dp-attention --disable-shared-experts-fusion \
    --chunked-prefill-size 32768 --max-prefill-tokens 32768 --trust-remote-code \
    --mem-fraction-static 0.7 --cuda-graph-bs 4 --max-running-requests 16 \
    --quantization modelslim --moe-a2a-backend deepep --deepep-mode auto \
    --load-balance-method round_robin \
    --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 \
    --speculative-num-draft-tokens 4 --speculative-draft-model-quantization unquant
