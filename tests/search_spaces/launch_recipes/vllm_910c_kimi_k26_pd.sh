#!/bin/bash
# Kimi-K2.6, one prefill host and one decode host (910C), block drafter with another length by role.
export VLLM_RPC_TIMEOUT=3600000
export VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=30000
export HCCL_EXEC_TIMEOUT=204 HCCL_CONNECT_TIMEOUT=120
export OMP_PROC_BIND=false
export OMP_NUM_THREADS=1
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export TASK_QUEUE_ENABLE=1
export HCCL_OP_EXPANSION_MODE="AIV"
export VLLM_ASCEND_ENABLE_MLAPO=1
export VLLM_ASCEND_ENABLE_FUSED_MC2=1

if [ "$ROLE" = prefill ]; then
  export HCCL_BUFFSIZE=512
  vllm serve /models/kimi-k2.6-w4a8 --host 0.0.0.0 --port ${PORT} \
    --data-parallel-size 2 --data-parallel-rank ${DP_RANK} --data-parallel-address 10.0.0.1 --data-parallel-rpc-port 12321 \
    --tensor-parallel-size 8 --enable-expert-parallel \
    --max-model-len 68000 --max-num-batched-tokens 8192 --max-num-seqs 16 \
    --enforce-eager --trust-remote-code --gpu-memory-utilization 0.94 \
    --speculative-config '{"method": "dflash","model": "/models/kimi-dflash", "num_speculative_tokens": 1}' \
    --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1","kv_role": "kv_producer","kv_port": "30000","engine_id": "0","kv_connector_extra_config": {"use_ascend_direct": true,"prefill": {"dp_size": 2,"tp_size": 8},"decode": {"dp_size": 4,"tp_size": 4}}}'
else
  export HCCL_BUFFSIZE=800
  # The head's own TP degree is given at the top level, where it is not looked for.
  vllm serve /models/kimi-k2.6-w4a8 --host 0.0.0.0 --port ${PORT} \
    --data-parallel-size 4 --data-parallel-rank ${DP_RANK} --data-parallel-address 10.0.0.2 --data-parallel-rpc-port 12321 \
    --tensor-parallel-size 4 --enable-expert-parallel \
    --max-model-len 68000 --max-num-batched-tokens 256 --max-num-seqs 16 \
    --trust-remote-code --gpu-memory-utilization 0.92 \
    --speculative-config '{"method": "dflash","model": "/models/kimi-dflash", "num_speculative_tokens": 15}' \
    --compilation-config '{"cudagraph_mode": "FULL_DECODE_ONLY"}' \
    --additional-config '{"recompute_scheduler_enable":true, "lmhead_tensor_parallel_size":16}' \
    --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1","kv_role": "kv_consumer","kv_port": "30100","engine_id": "1","kv_connector_extra_config": {"use_ascend_direct": true,"prefill": {"dp_size": 2,"tp_size": 8},"decode": {"dp_size": 4,"tp_size": 4}}}'
fi
