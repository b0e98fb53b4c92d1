#!/bin/bash
# MiniMax-M2.5 on eight 910B with an EAGLE-3 draft model.
export HCCL_BUFFSIZE=1200
export HCCL_OP_EXPANSION_MODE=AIV
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export OMP_NUM_THREADS=1
export TASK_QUEUE_ENABLE=1
export VLLM_ASCEND_ENABLE_FUSED_MC2=1
export VLLM_ASCEND_ENABLE_NZ=1

vllm serve /models/minimax-m2.5-w8a8 --port $SERVER_PORT --tensor-parallel-size 8 --enable-expert-parallel \
  --gpu-memory-utilization 0.9 --quantization ascend --trust-remote-code \
  --speculative_config '{"method":"eagle3","model":"/models/minimax-m2.5-eagle","num_speculative_tokens":3}' \
  --enable-chunked-prefill --no-enable-prefix-caching \
  --max-num-seqs 128 --max-model-len 196608 --max-num-batched-tokens 16384 \
  --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' \
  --additional-config '{"enable_cpu_binding": true, "enable_npugraph_ex": true, "enable_static_kernel": true}'
