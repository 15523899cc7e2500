#!/usr/bin/env bash
# Trains on a shop's questions, finds the score threshold, and answers the questions in questions.txt.
# The folder of the shop's files, relative to the project, is an optional argument.
set -euo pipefail
cd "$(dirname "$0")/../.."
shop=${1:-examples/shop}

# An attempt cannot be resumed with other pairs, so each run begins anew.
[ ! -e checkpoints/example-shop ] || python -m chatbot.attempts delete example-shop --yes >&2
python train.py --data "$shop/faq.tsv" --attempt example-shop --steps 60 >&2

threshold=$(python -m chatbot.evaluation --attempt example-shop --data "$shop/phrasings.tsv" \
  --precision 0.95 --outside "$shop/outside.txt" 2>&1 > /dev/null | tee >(cat >&2) | grep '^--min-score')
echo "$threshold"
read -r _ score _ <<< "$threshold"

python chat.py --attempt example-shop --min-score "${score%:}" --fallback 请转人工客服 --rules "$shop/rules.tsv" \
  < "$shop/questions.txt" | paste "$shop/questions.txt" -
