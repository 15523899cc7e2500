#!/usr/bin/env bash
# Starts the server with the attempt "default" and the webhook, and sends the lines of messages.txt as a messenger would.
set -euo pipefail
cd "$(dirname "$0")/../.."
trap 'kill $(jobs -pr); wait' EXIT

umask 077
for file in api-keys webhook-secret; do
  [ -e $file ] || openssl rand -hex 32 > $file
done
python chat.py --serve 127.0.0.1:8000 --api-key-file api-keys >&2 &
server=$!
python examples/platform/webhook.py >&2 &
until curl --fail --silent http://127.0.0.1:8000/ready > /dev/null; do
  kill -0 $server 2> /dev/null || exit 1 # its message is above
  sleep 0.5
done

while IFS=$'\t' read -r conversation text; do
  body="{\"conversation\": \"$conversation\", \"text\": \"$text\"}"
  signature=$(printf %s "$body" | openssl dgst -sha256 -hmac "$(cat webhook-secret)" -r | cut -d ' ' -f 1)
  curl --fail --silent --show-error --data "$body" --header "X-Signature: $signature" http://127.0.0.1:9000/bot
  echo
done < examples/platform/messages.txt
