#!/usr/bin/env bash
# llama3-8b, training, batch 128, sequence length 8192, 8 devices of hgx-h100
# dp4-tp1-pp1-cp2-m32-1f1b-z1-ring, written for megatron 0.19
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \
    --nnodes 1 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    pretrain_gpt.py \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 1 \
    --context-parallel-size 2 \
    --micro-batch-size 1 \
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
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --optimizer adam \
    --make-vocab-size-divisible-by 1 \
    --bf16 \
    --grad-reduce-in-bf16 \
    "$@"
