"""Follows the change stream with httpx and prints each complete state: follow.py BASE"""

import json
import sys
import time

import httpx

state = {"resets": 0, "position": None, "objects": {}}
complete = False


def events(lines):
    """Yields the complete events. An event that a broken connection cut off has no empty line after it."""
    fields = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        else:
            if "data" in fields:
                yield json.loads(fields["data"]), fields.get("id")
            fields = {}


def apply(event):
    global complete
    match event["type"]:
        case "reset":
            complete = False
            state["resets"] += 1
            state["objects"] = {}
            state["position"] = None
        case "upsert":
            state["objects"][event["key"]] = {"kind": event["kind"], "object": event["object"]}
        case "delete":
            state["objects"].pop(event["key"], None)
        case "synced":
            complete = True


with httpx.Client(timeout=httpx.Timeout(5, read=60), trust_env=False) as client:
    while True:
        headers = {"Last-Event-ID": state["position"]} if state["position"] else {}
        try:
            with client.stream("GET", sys.argv[1] + "/v1/events?snapshot=true", headers=headers) as response:
                response.raise_for_status()
                for event, position in events(response.iter_lines()):
                    apply(event)
                    if position:
                        state["position"] = position
                    if complete:
                        print(json.dumps(state), flush=True)
        except httpx.HTTPError as error:
            print(error, file=sys.stderr)
        time.sleep(0.2)
