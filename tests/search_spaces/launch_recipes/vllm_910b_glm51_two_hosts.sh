#!/bin/bash
# GLM-5.1 over two 910B hosts: the same server twice, the second without an API.
export HCCL_OP_EXPANSION_MODE="AIV"
export OMP_PROC_BIND=false
export OMP_NUM_THREADS=1
export HCCL_BUFFSIZE=200
export PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"
export VLLM_ASCEND_BALANCE_SCHEDULING=0
export VLLM_ASCEND_ENABLE_MLAPO=1
export VLLM_ENGINE_READY_TIMEOUT_S=3000
export VLLM_RPC_TIMEOUT=600

if [ "$NODE" = 0 ]; then
vllm serve /models/glm-5.1-w8a8 --host 0.0.0.0 --port $SERVER_PORT \
  --data-parallel-size 2 --tensor-parallel-size 8 --data-parallel-size-local 1 \
  --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13389 --enable-expert-parallel \
  --max-num-seqs 64 --max-model-len 38000 --max-num-batched-tokens 4096 \
  --gpu-memory-utilization 0.95 --quantization ascend --no-enable-prefix-caching \
  --additional-config '{"multistream_overlap_shared_expert": true, "ascend_compilation_config": {"fuse_qknorm_rope": false}}' \
  --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY","cudagraph_capture_sizes": [1,4,8,12,16,20,24,28,32,36,48,60,72]}' \
  --speculative-config '{"num_speculative_tokens": 3, "method": "deepseek_mtp"}'
else
vllm serve /models/glm-5.1-w8a8 --host 0.0.0.0 --port $SERVER_PORT \
  --data-parallel-size 2 --tensor-parallel-size 8 --data-parallel-size-local 1 \
  --data-parallel-start-rank 1 --headless \
  --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 13389 --enable-expert-parallel \
  --max-num-seqs 64 --max-model-len 38000 --max-num-batched-tokens 4096 \
  --gpu-memory-utilization 0.95 --quantization ascend --no-enable-prefix-caching \
  --additional-config '{"multistream_overlap_shared_expert": true, "ascend_compilation_config": {"fuse_qknorm_rope": false}}' \
  --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY","cudagraph_capture_sizes": [1,4,8,12,16,20,24,28,32,36,48,60,72]}' \
  --speculative-config '{"num_speculative_tokens": 3, "method": "deepseek_mtp"}'
fi
