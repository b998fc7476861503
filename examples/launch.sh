#!/usr/bin/env bash
# llama3-8b, training, batch 128, 16 devices of hgx-h100
# dp2-tp4-pp2-m32-1f1b-z1, written for megatron 0.19
# On each of 2 nodes of 8 devices, with NODE_RANK and MASTER_ADDR set
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \
    --nnodes 2 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    pretrain_gpt.py \
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 2 \
    --micro-batch-size 2 \
    --global-batch-size 128 \
    --seq-length 8192 \
    --num-layers 32 \
    --hidden-size 4096 \
    --num-attention-heads 32 \
    --ffn-hidden-size 14336 \
    --group-query-attention \
    --num-query-groups 8 \
    --max-position-embeddings 8192 \
    --normalization RMSNorm \
    --swiglu \
    --disable-bias-linear \
    --position-embedding-type rope \
    --rotary-base 500000 \
    --untie-embeddings-and-output-weights \
    --hidden-dropout 0.0 \
    --attention-dropout 0.0 \
    --vocab-size 128256 \
    --pipeline-model-parallel-layout 'Et*17|t*15L' \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --optimizer adam \
    --make-vocab-size-divisible-by 1 \
    --bf16 \
    --grad-reduce-in-bf16 \
    "$@"
