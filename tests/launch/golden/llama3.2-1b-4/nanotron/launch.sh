#!/usr/bin/env bash
# llama3.2-1b, training, batch 6, sequence length 256, 4 devices of hgx-h100
# dp2-tp2-pp1-m1-1f1b-sp, written for nanotron 2411b022
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \
    --nnodes 1 --nproc-per-node 4 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    run_train.py \
    --config-file config.yaml \
    "$@"
