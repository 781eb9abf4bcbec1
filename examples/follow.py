"""Keeps a copy of the ipcache of all clusters, with httpx-sse: follow.py [http://127.0.0.1:9870]"""

import json
import sys
import time

import httpx
from httpx_sse import connect_sse


def follow(base):
    """Yields the position and the copy (key to entry) each time the copy is complete and may have changed."""
    copy, position = {}, None
    # a bookmark arrives every 15 s, so a minute without data means a dead connection
    with httpx.Client(base_url=base, params={"kind": "ipcache", "snapshot": True}, timeout=httpx.Timeout(5, read=60)) as client:
        while True:
            fresh, synced = copy, False
            try:
                with connect_sse(client, "GET", "/v1/events", headers={"Last-Event-ID": position} if position else {}) as source:
                    source.response.raise_for_status()
                    for sse in source.iter_sse():
                        event = sse.json()
                        if event["type"] == "reset":  # the position is no longer valid: everything is sent again
                            fresh, synced = {}, False
                        elif event["type"] == "upsert":
                            fresh[event["key"]] = event["object"]
                        elif event["type"] == "delete":
                            fresh.pop(event["key"], None)
                        elif event["type"] == "synced":  # the snapshot or replay is complete, changes follow
                            copy, synced = fresh, True
                        if synced:
                            position = sse.id
                            yield position, copy
            except httpx.HTTPError as error:
                print(f"{error}; trying again", file=sys.stderr)
            time.sleep(1)


for position, entries in follow(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9870"):
    print(json.dumps({"position": position, "entries": entries}), flush=True)
