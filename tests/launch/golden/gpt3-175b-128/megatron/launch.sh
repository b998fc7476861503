#!/usr/bin/env bash
# gpt3-175B, training, batch 1536, sequence length 2048, precision fp16, 128 devices of hgx-h100
# dp1-tp8-pp16-m1536-1f1b, written for megatron 0.19
# On each of 16 nodes of 8 devices, with NODE_RANK and MASTER_ADDR set
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \
    --nnodes 16 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    pretrain_gpt.py \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 16 \
    --micro-batch-size 1 \
    --global-batch-size 1536 \
    --seq-length 2048 \
    --num-layers 96 \
    --hidden-size 12288 \
    --num-attention-heads 96 \
    --ffn-hidden-size 49152 \
    --max-position-embeddings 2048 \
    --normalization LayerNorm \
    --position-embedding-type learned_absolute \
    --hidden-dropout 0.1 \
    --attention-dropout 0.1 \
    --vocab-size 50257 \
    --optimizer adam \
    --make-vocab-size-divisible-by 1 \
    --fp16 \
    "$@"
