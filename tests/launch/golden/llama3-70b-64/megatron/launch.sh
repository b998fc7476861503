#!/usr/bin/env bash
# llama3-70b, training, batch 256, sequence length 8192, 64 devices of hgx-h100
# dp2-tp4-pp4-cp2-m128-interleaved-c5-z1-sp-ring, written for megatron 0.19
# On each of 8 nodes of 8 devices, with NODE_RANK and MASTER_ADDR set
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \
    --nnodes 8 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    pretrain_gpt.py \
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 4 \
    --context-parallel-size 2 \
    --micro-batch-size 1 \
    --global-batch-size 256 \
    --sequence-parallel \
    --seq-length 8192 \
    --num-layers 80 \
    --hidden-size 8192 \
    --num-attention-heads 64 \
    --ffn-hidden-size 28672 \
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
    --pipeline-model-parallel-layout 'Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*5|t*4|t*3L' \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --optimizer adam \
    --make-vocab-size-divisible-by 1 \
    --bf16 \
    --grad-reduce-in-bf16 \
    "$@"
