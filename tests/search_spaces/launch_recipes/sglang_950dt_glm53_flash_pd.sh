#!/bin/bash
# GLM-5.3-Flash in MXFP8, one 950 host for prefill and one for decode.
MODEL_PATH=/models/glm-5.3-flash-mxfp8
PREFILL_IP="10.0.0.1"
DECODE_IP="10.0.0.2"

export HCCL_BUFFSIZE=256
export ASCEND_MF_STORE_URL="tcp://${PREFILL_IP}:24670"
export ASCEND_MF_TRANSFER_PROTOCOL=device_urma
unset ASCEND_LAUNCH_BLOCKING
LOCAL_IPS=" $(hostname -I) "

if [[ "$LOCAL_IPS" == *" $PREFILL_IP "* ]]; then
    export SGLANG_HOST_IP="$PREFILL_IP"
    python3 -m sglang.launch_server \
        --model-path "$MODEL_PATH" \
        --quantization modelslim --load-format auto \
        --device npu --attention-backend ascend --trust-remote-code \
        --disaggregation-mode prefill \
        --disaggregation-bootstrap-port 8998 \
        --disaggregation-transfer-backend ascend \
        --tp-size 8 --pp-size 1 --dp-size 2 --enable-dp-attention --nnodes 1 \
        --chunked-prefill-size 16384 --max-prefill-tokens 16384 \
        --mem-fraction-static 0.83 --page-size 64 --max-running-requests 16 \
        --speculative-draft-model-path "$MODEL_PATH" \
        --speculative-draft-kv-cache-dtype bf16 \
        --speculative-algorithm NEXTN --speculative-num-steps 4 \
        --speculative-eagle-topk 1 --speculative-num-draft-tokens 5 \
        --pre-warm-nccl --watchdog-timeout 1200 --cuda-graph-bs-decode 1 8 64 \
        --host "$PREFILL_IP" --port 8810
elif [[ "$LOCAL_IPS" == *" $DECODE_IP "* ]]; then
    export SGLANG_HOST_IP="$DECODE_IP"
    python3 -m sglang.launch_server \
        --model-path "$MODEL_PATH" \
        --quantization modelslim --load-format auto \
        --device npu --attention-backend ascend --trust-remote-code \
        --disaggregation-mode decode \
        --disaggregation-bootstrap-port 8998 \
        --disaggregation-transfer-backend ascend \
        --tp-size 8 --pp-size 1 --dp-size 2 --enable-dp-attention --nnodes 1 \
        --chunked-prefill-size 16384 --max-prefill-tokens 16384 \
        --mem-fraction-static 0.83 --page-size 64 --max-running-requests 16 \
        --speculative-draft-model-path "$MODEL_PATH" \
        --speculative-draft-kv-cache-dtype bf16 \
        --speculative-algorithm NEXTN --speculative-num-steps 4 \
        --speculative-eagle-topk 1 --speculative-num-draft-tokens 5 \
        --pre-warm-nccl --watchdog-timeout 1200 --cuda-graph-bs-decode 1 8 64 \
        --host "$DECODE_IP" --port 8811
else
    echo "this host has no role: $LOCAL_IPS" >&2
    exit 1
fi
