#!/bin/bash
# GLM-5.2 at 128 K context with 90 % of the prompt cached: TP8 prefill, TP4 decode (910C).
export VLLM_ASCEND_ENABLE_FUSED_MC2=1
export HCCL_OP_EXPANSION_MODE="AIV"
export OMP_PROC_BIND=false
export OMP_NUM_THREADS=1
export PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"
export ACL_OP_INIT_MODE=1

prefill() {
  export VLLM_ASCEND_ENABLE_FLASHCOMM1=1
  export HCCL_BUFFSIZE=400
  vllm serve /models/glm-5.2-w8a8c8 --host 0.0.0.0 --port $SERVER_PORT \
    --data-parallel-size 4 --data-parallel-rank $DP_RANK --tensor-parallel-size 8 --enable-expert-parallel \
    --hf-overrides '{"use_index_cache": true, "index_topk_freq": 4}' \
    --speculative-config '{"num_speculative_tokens": 3, "method":"deepseek_mtp","enforce_eager":true}' \
    --max-model-len 202752 --max-num-batched-tokens 8192 --max-num-seqs 64 \
    --additional-config '{"fuse_muls_add":true,"recompute_scheduler_enable" : false,"multistream_overlap_shared_expert": true, "enable_dsa_cp":true,"enable_sparse_sfa_c8": true, "enable_sparse_li_c8": true,"c8_enable_reshape_optim":true}' \
    --enable-prefix-caching --quantization ascend --gpu-memory-utilization 0.92 --enforce-eager \
    --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_producer",
        "kv_port": "30000",
        "engine_id": "0",
        "kv_connector_extra_config": {
            "use_ascend_direct": true,
            "prefill": {"dp_size": 4, "tp_size": 8},
            "decode": {"dp_size": 8, "tp_size": 4}
        }}'
}

decode() {
  export HCCL_BUFFSIZE=256
  export TASK_QUEUE_ENABLE=1
  export VLLM_ASCEND_ENABLE_MLAPO=1
  vllm serve /models/glm-5.2-w8a8c8 --host 0.0.0.0 --port $SERVER_PORT \
    --data-parallel-size 8 --data-parallel-rank $DP_RANK --tensor-parallel-size 4 --enable-expert-parallel \
    --hf-overrides '{"use_index_cache": true, "index_topk_freq": 4}' \
    --max-model-len 202752 --max-num-batched-tokens 164 --max-num-seqs 32 \
    --compilation-config '{"cudagraph_mode":"FULL_DECODE_ONLY"}' \
    --speculative-config '{"num_speculative_tokens": 3,  "method":"deepseek_mtp","enforce_eager":true}' \
    --additional-config '{"fuse_muls_add":true,"recompute_scheduler_enable":true,"multistream_overlap_shared_expert":true,"enable_sparse_sfa_c8": true, "enable_sparse_li_c8": true}' \
    --gpu-memory-utilization 0.92 --async-scheduling --quantization ascend --enable-prefix-caching \
    --kv-transfer-config '{"kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_consumer",
        "kv_port": "30200",
        "engine_id": "2",
        "kv_connector_extra_config": {
            "use_ascend_direct": true,
            "prefill": {"dp_size": 4, "tp_size": 8},
            "decode": {"dp_size": 8, "tp_size": 4}
        }}'
}

"$1"
