#!/bin/bash
# DeepSeek-R1 with moving experts, prefill TP8 and decode on 32 single dies (910C).
export HCCL_BUFFSIZE=1024
export OMP_PROC_BIND=false
export OMP_NUM_THREADS=10
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export HCCL_DETERMINISTIC=True
export TASK_QUEUE_ENABLE=1
export HCCL_OP_RETRY_ENABLE="L0:0, L1:0, L2:0"
export DYNAMIC_EPLB=true

# prefill
vllm serve /models/deepseek-r1-w8a8 --host 0.0.0.0 --port $SERVER_PORT \
    --data-parallel-size 2 --data-parallel-size-local 2 --tensor-parallel-size 8 \
    --enforce-eager --enable-expert-parallel --quantization ascend \
    --max-num-seqs 4 --max-model-len 36864 --max-num-batched-tokens 16384 \
    --gpu-memory-utilization 0.9 \
    --speculative-config '{"num_speculative_tokens": 1, "method":"mtp"}' \
    --kv-transfer-config \
    '{"kv_connector": "MooncakeConnectorV1",
      "kv_role": "kv_producer",
      "kv_port": "30000",
      "kv_connector_extra_config": {
          "prefill": { "dp_size": 2, "tp_size": 8 },
          "decode": { "dp_size": 32, "tp_size": 1 }
      }
    }' \
    --additional-config \
    '{"enable_prefill_optimizations":true,"enable_weight_nz_layout":true,"eplb_config": {"dynamic_eplb":true,"expert_heat_collection_interval":2048,"algorithm_execution_interval":200}}' &

# decode: here the expert settings lost their enclosing object
vllm serve /models/deepseek-r1-w8a8 --host 0.0.0.0 --port $SERVER_PORT \
    --data-parallel-size 32 --data-parallel-size-local 16 --data-parallel-start-rank 0 \
    --data-parallel-address 10.0.0.3 --data-parallel-rpc-port 13389 --tensor-parallel-size 1 \
    --enable-expert-parallel --quantization ascend \
    --max-num-seqs 28 --max-model-len 36864 --max-num-batched-tokens 256 \
    --gpu-memory-utilization 0.9 \
    --speculative-config '{"num_speculative_tokens": 1, "method":"mtp"}' \
    --kv-transfer-config \
    '{"kv_connector": "MooncakeConnectorV1",
      "kv_role": "kv_consumer",
      "kv_port": "30200",
      "kv_connector_extra_config": {
          "prefill": { "dp_size": 2, "tp_size": 8 },
          "decode": { "dp_size": 32, "tp_size": 1 }
      }
    }' \
    --additional-config \
    '{"multistream_overlap_shared_expert":true,"dynamic_eplb":true,"expert_heat_collection_interval":2048,"algorithm_execution_interval":200}'
