#!/usr/bin/env bash
# gpt3-175B, training, batch 1536, sequence length 2048, precision fp16, 128 devices of hgx-h100
# dp1-tp8-pp16-m1536-1f1b, written for bridge 0.3
# On each of 16 nodes of 8 devices, with NODE_RANK and MASTER_ADDR set
set -euo pipefail
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun \
    --nnodes 16 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    run_recipe.py \
    --recipe gpt3_175b_pretrain_config \
    model.tensor_model_parallel_size=8 \
    model.pipeline_model_parallel_size=16 \
    model.context_parallel_size=1 \
    model.cp_comm_type=p2p \
    train.micro_batch_size=1 \
    train.global_batch_size=1536 \
    model.sequence_parallel=false \
    dist.use_tp_pp_dp_mapping=false \
    model.seq_length=2048 \
    model.expert_model_parallel_size=1 \
    model.virtual_pipeline_model_parallel_size=null \
    model.pipeline_model_parallel_layout=null \
    ddp.use_distributed_optimizer=false \
    ddp.use_megatron_fsdp=false \
    ddp.num_distributed_optimizer_instances=1 \
    ddp.overlap_grad_reduce=false \
    ddp.overlap_param_gather=false \
    model.recompute_granularity=null \
    model.recompute_method=null \
    model.recompute_num_layers=null \
    optimizer.optimizer=adam \
    model.make_vocab_size_divisible_by=1 \
    mixed_precision=fp16_mixed \
    ddp.grad_reduce_in_fp32=false \
    model.hidden_dropout=0.1 \
    model.attention_dropout=0.1 \
    model.should_pad_vocab=true \
    "$@"
