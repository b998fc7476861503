#!/usr/bin/env bash
# Makes an environment with the frameworks whose parsers read what is written: install.sh FOLDER PYTHON.
# It takes 2.5 GB, and five minutes; one that is complete stays as it is. CPU packages of torch come from
# wherever pip is told to look (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL).
set -euo pipefail
folder=$1 python=${2:-python3}
[[ -f $folder/complete ]] && exit 0
"$python" -m venv "$folder"
pip=("$folder/bin/pip" install --quiet --disable-pip-version-check)
"${pip[@]}" torch==2.13.0
# What frameworks need to be imported, without what they need to train.
"${pip[@]}" tyro docstring-parser typeguard rich spmd_types==0.2.3 torch_checkpointing torchdata \
    datasets tokenizers transformers safetensors einops pyarrow tensorboard wandb hjson ninja \
    packaging psutil py-cpuinfo pydantic tqdm msgpack huggingface_hub
"${pip[@]}" --no-deps torchtitan==0.3.0 deepspeed==0.19.8 accelerate==1.15.0 triton
# megatron-core has wheels for Python 3.12; 3.11 runs them too.
"${pip[@]}" --no-deps --ignore-requires-python --only-binary=:all: --python-version 3.12 \
    --target "$folder/megatron" megatron-core==0.19.2
# What this project needs, and its tests.
"${pip[@]}" 'numpy>=1.26,<3' 'onnx>=1.17,<2' 'pyyaml>=6.0,<7' 'optuna>=5.0,<6' 'scikit-learn>=1.5,<2' \
    'cloudpickle>=3,<4' 'joblib>=1.4,<2' 'hypothesis>=6.110,<7' 'pytest>=8.2,<10' typing_extensions
touch "$folder/complete"
