"""Follows a prefix of an etcd with the package etcd3 and prints each complete state: follow_etcd.py URL PREFIX

It lists once and then watches from the next revision. After a broken connection it watches from the
next revision that it does not know, and lists again if that revision was compacted.
"""

import base64
import json
import sys
import time
from urllib.parse import urlsplit

import etcd3
import grpc
from etcd3.events import DeleteEvent
from etcd3.exceptions import ConnectionFailedError, RevisionCompactedError

# seconds between two attempts while there is no server
PAUSE_S = 0.1


class State:
    def __init__(self):
        self.revision, self.lists, self.previous, self.keys = 0, 0, 0, {}

    def list(self, client, prefix):
        response = client.get_prefix_response(prefix)
        self.keys = {kv.key.decode(): kv.value for kv in response.kvs}
        assert len(self.keys) == response.count and not response.more
        self.revision = response.header.revision
        self.lists += 1
        self.print()

    def follow(self, client, prefix):
        responses, _cancel = client.watch_prefix_response(prefix, start_revision=self.revision + 1, prev_kv=True, progress_notify=True)
        for response in responses:
            for event in response.events:
                self.apply(event)
            assert response.header.revision >= self.revision
            self.revision = response.header.revision
            self.print()

    def apply(self, event):
        key = event.key.decode()
        assert event.mod_revision > self.revision, f"{key} at {event.mod_revision} after {self.revision}"
        self.revision = event.mod_revision
        if event.prev_key:
            self.previous += 1
            assert self.keys[key] == event.prev_value, f"{key} had another value"
        if isinstance(event, DeleteEvent):
            self.keys.pop(key, None)
        else:
            self.keys[key] = event.value

    def print(self):
        keys = {key: base64.b64encode(value).decode() for key, value in self.keys.items()}
        state = {"revision": self.revision, "lists": self.lists, "previous": self.previous, "keys": keys}
        print(json.dumps(state), flush=True)


def ask(client):
    """Sends requests that a program sends before it trusts an etcd, and requests that are refused."""
    members = list(client.members)
    status = client.status()
    assert [member.id for member in members] == [status.leader.id] and status.version, members
    try:
        client.put("a", "b")
        raise AssertionError("a put was accepted")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED, error
    succeeded, answers = client.transaction(
        compare=[client.transactions.version("a") == 0], success=[client.transactions.get("a")], failure=[]
    )
    assert succeeded and answers == [[]], answers
    lease = client.lease(900)
    assert lease.refresh()[0].TTL > 0
    lease.revoke()


def main():
    url, prefix = urlsplit(sys.argv[1]), sys.argv[2]
    # a list or a watch response may be one large message
    options = [("grpc.max_receive_message_length", -1)]
    client, state = etcd3.client(host=url.hostname, port=url.port, grpc_options=options), State()
    ask(client)
    state.list(client, prefix)
    while True:
        try:
            state.follow(client, prefix)
        except ConnectionFailedError:
            time.sleep(PAUSE_S)
        except RevisionCompactedError:
            state.list(client, prefix)


if __name__ == "__main__":
    main()
