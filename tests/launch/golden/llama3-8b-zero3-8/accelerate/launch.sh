#!/usr/bin/env bash
# llama3-8b, training, batch 64, sequence length 8192, 8 devices of hgx-h100
# dp8-tp1-pp1-m4-1f1b-z3-full, written for accelerate 1.15
set -euo pipefail
accelerate launch --config_file accelerate.yaml \
    --machine_rank "${NODE_RANK:-0}" --main_process_ip "${MASTER_ADDR:-localhost}" \
    --main_process_port "${MASTER_PORT:-29500}" \
    train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 8192 \
    "$@"
