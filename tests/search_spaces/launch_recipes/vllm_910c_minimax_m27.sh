#!/bin/bash
# MiniMax-M2.7, one 910C host, two replicas of TP8 with experts spread over all dies.
export HCCL_OP_EXPANSION_MODE="AIV"
export HCCL_BUFFSIZE=1200
export PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"
export OMP_NUM_THREADS=1
export LD_PRELOAD=/usr/lib/aarch64-linux-gnu/libjemalloc.so.2:$LD_PRELOAD
export TASK_QUEUE_ENABLE=1

# The two graph compiler switches stand beside ascend_compilation_config instead of inside it.
vllm serve /models/minimax-m2.7-w8a8 --host 0.0.0.0 --port $SERVER_PORT \
  --tensor-parallel-size 8 --data-parallel-size 2 --enable-expert-parallel \
  --async-scheduling \
  --max-num-seqs 128 --max-num-batched-tokens 16384 --max-model-len 70000 \
  --gpu-memory-utilization 0.8 --no-enable-prefix-caching \
  --safetensors-load-strategy 'prefetch' \
  --trust-remote-code --quantization ascend \
  --speculative_config '{"method":"eagle3","model":"/models/minimax-m2.7-eagle","num_speculative_tokens":3}' \
  --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' \
  --additional-config '{"enable_cpu_binding": true, "enable_npugraph_ex": true, "enable_static_kernel": true,"enable_fused_mc2":true,"weight_nz_mode":true,"enable_flashcomm1":true}'
