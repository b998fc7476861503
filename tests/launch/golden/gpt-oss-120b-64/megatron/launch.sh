#!/usr/bin/env bash
# gpt-oss-120b, training, batch 1280, sequence length 4096, 64 devices of hgx-h100
# dp16-tp1-pp4-ep8-m80-1f1b-z1-selective, written for megatron 0.19
# On each of 8 nodes of 8 devices, with NODE_RANK and MASTER_ADDR set
set -euo pipefail
torchrun \
    --nnodes 8 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    pretrain_gpt.py \
    --tensor-model-parallel-size 1 \
    --pipeline-model-parallel-size 4 \
    --micro-batch-size 1 \
    --global-batch-size 1280 \
    --seq-length 4096 \
    --num-layers 36 \
    --hidden-size 2880 \
    --num-attention-heads 64 \
    --ffn-hidden-size 2880 \
    --kv-channels 64 \
    --group-query-attention \
    --num-query-groups 8 \
    --max-position-embeddings 4096 \
    --normalization RMSNorm \
    --swiglu \
    --disable-bias-linear \
    --add-qkv-bias \
    --position-embedding-type rope \
    --rotary-base 150000 \
    --untie-embeddings-and-output-weights \
    --hidden-dropout 0.0 \
    --attention-dropout 0.0 \
    --vocab-size 201088 \
    --num-experts 128 \
    --moe-router-topk 4 \
    --moe-ffn-hidden-size 2880 \
    --moe-token-dispatcher-type alltoall \
    --moe-grouped-gemm \
    --expert-model-parallel-size 8 \
    --pipeline-model-parallel-layout 'Et*9|t*10|t*10|t*7L' \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --overlap-param-gather \
    --recompute-granularity selective \
    --recompute-modules layernorm moe_act \
    --optimizer adam \
    --make-vocab-size-divisible-by 1 \
    --bf16 \
    --grad-reduce-in-bf16 \
    "$@"
