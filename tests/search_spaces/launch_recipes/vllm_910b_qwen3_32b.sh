#!/bin/bash
# Qwen3-32B in int8 on four 910B.
export TASK_QUEUE_ENABLE="1"
export HCCL_OP_EXPANSION_MODE="AIV"

vllm serve /models/qwen3-32b-w8a8 --quantization ascend --no-enable-prefix-caching \
  --tensor-parallel-size 4 --port $SERVER_PORT --max-model-len 40960 --max-num-batched-tokens 40960 \
  --block-size 128 --trust-remote-code --gpu-memory-utilization 0.9 \
  --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1,12,16,20,24,32,48,60,64,68,72,76,80]}'
