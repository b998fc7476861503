#!/usr/bin/env bash
# gpt3-15b-8t, training, batch 384, gradient precision fp32, 8 devices of hgx-h100
# dp1-tp8-pp1-m96-1f1b-sp, written for megatron 0.19
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \
    --nnodes 1 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    pretrain_gpt.py \
    --tensor-model-parallel-size 8 \
    --pipeline-model-parallel-size 1 \
    --micro-batch-size 4 \
    --global-batch-size 384 \
    --sequence-parallel \
    --seq-length 4096 \
    --num-layers 32 \
    --hidden-size 6144 \
    --num-attention-heads 48 \
    --ffn-hidden-size 24576 \
    --group-query-attention \
    --num-query-groups 8 \
    --max-position-embeddings 4096 \
    --normalization LayerNorm \
    --disable-bias-linear \
    --position-embedding-type rope \
    --rotary-percent 0.5 \
    --rotary-base 10000 \
    --untie-embeddings-and-output-weights \
    --hidden-dropout 0.0 \
    --attention-dropout 0.0 \
    --vocab-size 256000 \
    --optimizer adam \
    --make-vocab-size-divisible-by 1 \
    --bf16 \
    "$@"
