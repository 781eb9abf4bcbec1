#!/usr/bin/env bash
# Keeps a copy of the ipcache of all clusters in a file, with curl and jq:
#   follow.sh [http://127.0.0.1:9870 [ipcache.json]]
# The file contains {"position", "entries": {key: entry}} and is replaced atomically. After a
# restart, the script continues from it.
set -uo pipefail
base=${1:-http://127.0.0.1:9870} file=${2:-ipcache.json}
[ -s "$file" ] || echo '{"entries": {}}' >"$file"

while :; do
  position=$(jq -r '.position // ""' "$file")
  # a bookmark arrives every 15 s, so a minute without data means a dead connection
  curl --silent --show-error --fail --no-buffer --get --speed-limit 1 --speed-time 60 \
    --header 'Accept: application/x-ndjson' --data 'kind=ipcache&snapshot=true' \
    ${position:+--data-urlencode "after=$position"} "$base/v1/events" |
  jq -cn --unbuffered --slurpfile copy "$file" '
    foreach inputs as $event ($copy[0];
      if $event.type == "reset" then .entries = {} | .synced = false  # the position is no longer valid: everything is sent again
      elif $event.type == "upsert" then .entries[$event.key] = $event.object
      elif $event.type == "delete" then del(.entries[$event.key])
      elif $event.type == "synced" then .synced = true                # the snapshot or replay is complete, changes follow
      else . end
      | .position = ($event.position // $event.meta.position // .position);
      select(.synced) | del(.synced))' |
  while IFS= read -r copy; do
    printf '%s\n' "$copy" >"$file.new" && mv "$file.new" "$file"
  done
  sleep 1
done
