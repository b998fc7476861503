#!/usr/bin/env bash
# llama3-70b, training, batch 256, sequence length 8192, 64 devices of hgx-h100
# dp2-tp4-pp4-cp2-m128-interleaved-c5-z1-sp-ring, written for bridge 0.3
# On each of 8 nodes of 8 devices, with NODE_RANK and MASTER_ADDR set
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \
    --nnodes 8 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    run_recipe.py \
    --recipe llama3_70b_pretrain_config \
    model.tensor_model_parallel_size=4 \
    model.pipeline_model_parallel_size=4 \
    model.context_parallel_size=2 \
    model.cp_comm_type=p2p \
    train.micro_batch_size=1 \
    train.global_batch_size=256 \
    model.sequence_parallel=true \
    dist.use_tp_pp_dp_mapping=false \
    model.seq_length=8192 \
    model.expert_model_parallel_size=1 \
    model.virtual_pipeline_model_parallel_size=null \
    'model.pipeline_model_parallel_layout=Et*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*4|t*5|t*4|t*3L' \
    ddp.use_distributed_optimizer=true \
    ddp.use_megatron_fsdp=false \
    ddp.num_distributed_optimizer_instances=1 \
    ddp.overlap_grad_reduce=true \
    ddp.overlap_param_gather=true \
    model.recompute_granularity=null \
    model.recompute_method=null \
    model.recompute_num_layers=null \
    optimizer.optimizer=adam \
    model.make_vocab_size_divisible_by=1 \
    mixed_precision=bf16_mixed \
    ddp.grad_reduce_in_fp32=false \
    model.hidden_dropout=0.0 \
    model.attention_dropout=0.0 \
    model.should_pad_vocab=true \
    "$@"
