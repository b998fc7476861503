#!/usr/bin/env bash
# gpt-oss-120b, training, batch 1280, sequence length 4096, 64 devices of hgx-h100
# dp16-tp1-pp4-ep8-m80-1f1b-z1-selective, written for bridge 0.3
# On each of 8 nodes of 8 devices, with NODE_RANK and MASTER_ADDR set
set -euo pipefail
torchrun \
    --nnodes 8 --nproc-per-node 8 \
    --node-rank "${NODE_RANK:-0}" \
    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}" \
    run_recipe.py \
    --recipe RECIPE \
    model.tensor_model_parallel_size=1 \
    model.pipeline_model_parallel_size=4 \
    model.context_parallel_size=1 \
    model.cp_comm_type=p2p \
    train.micro_batch_size=1 \
    train.global_batch_size=1280 \
    model.sequence_parallel=false \
    dist.use_tp_pp_dp_mapping=false \
    model.seq_length=4096 \
    model.expert_model_parallel_size=8 \
    model.virtual_pipeline_model_parallel_size=null \
    'model.pipeline_model_parallel_layout=Et*9|t*10|t*10|t*7L' \
    ddp.use_distributed_optimizer=true \
    ddp.use_megatron_fsdp=false \
    ddp.num_distributed_optimizer_instances=1 \
    ddp.overlap_grad_reduce=true \
    ddp.overlap_param_gather=true \
    model.recompute_granularity=selective \
    model.recompute_method=null \
    model.recompute_num_layers=null \
    'model.recompute_modules=[layernorm,moe_act]' \
    optimizer.optimizer=adam \
    model.make_vocab_size_divisible_by=1 \
    mixed_precision=bf16_mixed \
    ddp.grad_reduce_in_fp32=false \
    model.hidden_dropout=0.0 \
    model.attention_dropout=0.0 \
    model.should_pad_vocab=true \
    "$@"
