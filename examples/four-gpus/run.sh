#!/usr/bin/env bash
# Tries million.yaml with few pairs and a small model, on four simulated GPUs or, without a C++ compiler, on the CPU.
set -euo pipefail
cd "$(dirname "$0")/../.."

# An attempt cannot be resumed with other pairs, so each run begins anew.
[ ! -e checkpoints/example-few ] || python -m chatbot.attempts delete example-few --yes >&2
python examples/four-gpus/generate.py 5000 > data/few.tsv
command=(python train.py --config examples/four-gpus/million.yaml --attempt example-few --data data/few.tsv
  --rnn-size 64 --num-layers 1 --embedding-size 64 --batch-size 64 --steps 40 --embeddings none)
if command -v "${CXX:-g++}" > /dev/null; then
  command=(python -m tests.gpu.standin "${command[@]}" --gpus 0,1,2,3)
else
  export CUDA_VISIBLE_DEVICES=
  command+=(--towers 4)
fi
# The pairs, the towers, and the first two digits of the loss; the others depend on the devices.
"${command[@]}" | tee >(cat >&2) | sed -nE 's/^(Training on .*)/\1/p; s/^([0-3])  +[cg]pu_.*/tower \1/p; s/^(Best: .\..)[0-9]*/\1/p'
