#!/usr/bin/env bash
# llama3-8b, training, batch 128, sequence length 8192, precision fp8, 8 devices of hgx-h100
# dp8-tp1-pp1-m16-1f1b-z1-full:5, written for bridge 0.3
set -euo pipefail
torchrun \
    --nnodes 1 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    run_recipe.py \
    --recipe llama3_8b_pretrain_config \
    model.tensor_model_parallel_size=1 \
    model.pipeline_model_parallel_size=1 \
    model.context_parallel_size=1 \
    model.cp_comm_type=p2p \
    train.micro_batch_size=1 \
    train.global_batch_size=128 \
    model.sequence_parallel=false \
    dist.use_tp_pp_dp_mapping=false \
    model.seq_length=8192 \
    model.expert_model_parallel_size=1 \
    model.virtual_pipeline_model_parallel_size=null \
    model.pipeline_model_parallel_layout=null \
    ddp.use_distributed_optimizer=true \
    ddp.use_megatron_fsdp=false \
    ddp.num_distributed_optimizer_instances=1 \
    ddp.overlap_grad_reduce=true \
    ddp.overlap_param_gather=true \
    model.recompute_granularity=full \
    model.recompute_method=block \
    model.recompute_num_layers=5 \
    optimizer.optimizer=adam \
    model.make_vocab_size_divisible_by=1 \
    mixed_precision=bf16_with_fp8_current_scaling_mixed \
    ddp.grad_reduce_in_fp32=false \
    model.hidden_dropout=0.0 \
    model.attention_dropout=0.0 \
    model.should_pad_vocab=true \
    "$@"
