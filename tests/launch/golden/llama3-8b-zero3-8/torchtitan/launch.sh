#!/usr/bin/env bash
# llama3-8b, training, batch 64, sequence length 8192, 8 devices of hgx-h100
# dp8-tp1-pp1-m4-1f1b-z3-full, written for torchtitan 0.3
set -euo pipefail
export PYTORCH_ALLOC_CONF=expandable_segments:True
torchrun \
    --nnodes 1 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    -m torchtitan.train \
    --module llama3 \
    --config llama3_8b \
    --parallelism.tensor_parallel_degree 1 \
    --parallelism.pipeline_parallel_degree 1 \
    --parallelism.context_parallel_degree 1 \
    --parallelism.expert_parallel_degree 1 \
    --parallelism.data_parallel_replicate_degree 1 \
    --parallelism.data_parallel_shard_degree 8 \
    --parallelism.fsdp_reshard_after_forward always \
    --training.local_batch_size 2 \
    --training.global_batch_size 64 \
    --training.seq_len 8192 \
    --training.mixed_precision_param bfloat16 \
    --compile.enable \
    "$@" \
    activation_checkpoint:full
