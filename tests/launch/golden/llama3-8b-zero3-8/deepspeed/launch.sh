#!/usr/bin/env bash
# llama3-8b, training, batch 64, sequence length 8192, 8 devices of hgx-h100
# dp8-tp1-pp1-m4-1f1b-z3-full, written for deepspeed 0.19
set -euo pipefail
deepspeed \
    --num_nodes 1 --num_gpus 8 \
    train.py --deepspeed --deepspeed_config ds_config.json \
    --max_length 8192 \
    "$@"
