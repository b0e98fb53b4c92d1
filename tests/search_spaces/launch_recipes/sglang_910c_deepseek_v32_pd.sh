#!/bin/bash
# DeepSeek-V3.2 at 128 K: context-parallel prefill over two 910C hosts, decode over two more.
export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
export SGLANG_SET_CPU_AFFINITY=1
export STREAMS_PER_DEVICE=32
P_IP=('10.0.0.1' '10.0.0.2')
D_IP=('10.0.0.3' '10.0.0.4')
export ASCEND_MF_STORE_URL="tcp://10.0.0.1:24670"
MODEL_PATH=/models/deepseek-v3.2-w8a8
LOCAL_HOST1=`hostname -I|awk -F " " '{print$1}'`

# prefill
for i in "${!P_IP[@]}";
do
    if [[ "$LOCAL_HOST1" == "${P_IP[$i]}" ]];
    then
        export DEEP_NORMAL_MODE_USE_INT8_QUANT=1
        export HCCL_BUFFSIZE=1200
        export TASK_QUEUE_ENABLE=2

        python3 -m sglang.launch_server \
        --model-path ${MODEL_PATH} \
        --disaggregation-mode prefill \
        --host ${P_IP[$i]} \
        --port 8000 \
        --dist-init-addr ${P_IP[0]}:5000 \
        --disaggregation-bootstrap-port 8998 \
        --node-rank $i \
        --nnodes 2 \
        --tp 32 \
        --watchdog-timeout 9000 \
        --mem-fraction-static 0.73 \
        --disable-radix-cache \
        --chunked-prefill-size -1 \
        --max-prefill-tokens 68000 \
        --max-running-requests 1 \
        --moe-a2a-backend deepep \
        --deepep-mode normal \
        --quantization modelslim \
        --disaggregation-transfer-backend ascend \
        --disable-cuda-graph \
        --moe-dense-tp-size 1 \
        --enable-nsa-prefill-context-parallel \
        --nsa-prefill-cp-mode in-seq-split \
        --attn-cp-size 32 \
        --speculative-algorithm NEXTN \
        --speculative-num-steps 1 \
        --speculative-eagle-topk 1 \
        --speculative-num-draft-tokens 2 \
        --attention-backend ascend \
        --device npu
        break
    fi
done

# decode
for i in "${!D_IP[@]}";
do
    if [[ "$LOCAL_HOST1" == "${D_IP[$i]}" ]];
    then
        export DEEP_NORMAL_MODE_USE_INT8_QUANT=1
        export HCCL_BUFFSIZE=400
        export SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=8
        export SGLANG_ENABLE_OVERLAP_PLAN_STREAM=1
        export SGLANG_ENABLE_SPEC_V2=1
        export SGLANG_SCHEDULER_SKIP_ALL_GATHER=1
        export TASK_QUEUE_ENABLE=0

        python3 -m sglang.launch_server \
        --model-path ${MODEL_PATH} \
        --disaggregation-mode decode \
        --host ${D_IP[$i]} \
        --port 8001 \
        --dist-init-addr ${D_IP[0]}:5000 \
        --node-rank $i \
        --nnodes 2 \
        --tp 32 \
        --dp 8 \
        --ep 32 \
        --moe-dense-tp-size 1 \
        --enable-dp-attention \
        --enable-dp-lm-head \
        --watchdog-timeout 9000 \
        --mem-fraction-static 0.79 \
        --disable-radix-cache \
        --chunked-prefill-size -1 \
        --max-prefill-tokens 68000 \
        --max-running-requests 32 \
        --cuda-graph-max-bs-decode 4 \
        --moe-a2a-backend deepep \
        --deepep-mode low_latency \
        --quantization modelslim \
        --speculative-algorithm NEXTN \
        --speculative-num-steps 3 \
        --speculative-eagle-topk 1 \
        --speculative-num-draft-tokens 4 \
        --disaggregation-transfer-backend ascend \
        --attention-backend ascend \
        --device npu
        break
    fi
done
