#!/usr/bin/env bash
# Trains on the replies of one person in a chat, exports the model as one file, and answers messages.txt from this file.
set -euo pipefail
cd "$(dirname "$0")/../.."

# An attempt cannot be resumed with other pairs, so each run begins anew.
[ ! -e checkpoints/example-friend ] || python -m chatbot.attempts delete example-friend --yes >&2
python train.py --data examples/friend/chat.txt --me 小满 --attempt example-friend --steps 60 >&2
python -m chatbot.export example-friend --zip exports/xiaoman.zip --overwrite >&2
python chat.py exports/xiaoman.zip < examples/friend/messages.txt | paste examples/friend/messages.txt -
