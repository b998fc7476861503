#!/usr/bin/env bash
# llama3-8b, training, batch 128, sequence length 8192, precision fp8, 8 devices of hgx-h100
# dp8-tp1-pp1-m16-1f1b-z1-full:5, written for megatron 0.19
set -euo pipefail
torchrun \
    --nnodes 1 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    pretrain_gpt.py \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 1 \
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
    --recompute-granularity full \
    --recompute-method block \
    --recompute-num-layers 5 \
    --optimizer adam \
    --make-vocab-size-divisible-by 1 \
    --bf16 \
    --fp8-format hybrid \
    --fp8-recipe tensorwise \
    --grad-reduce-in-bf16 \
    "$@"
