"""Reads everything that a meshkeep serves with the client generated from its OpenAPI document.

Usage: read_all.py BASE_URL [PAGE_LIMIT]

Reads every list page by page. The first objects of each list are also read one by one and must be
equal. Prints one JSON object:

    clusters    names
    nodes       cluster/name
    services    cluster/namespace/name
    global      namespace/name=cluster,…
    exports     cluster/namespace/name
    slices      cluster/namespace/name
    identities  cluster/id
    ipcache     cluster/prefix, with the suffix " host" for host entries
    entries     keys in cache form
    rejected    keys in cache form
    changes     a description of each usable object from /v1/changes, by key in cache form
    lookup      address=cluster/prefix for the address of each host entry
    counts      the counts of /v1/status
    unchanged   the status of a request with the ETag of the answer before
    stream      the modes of two streams: a snapshot, and a replay after its position
"""

import base64
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "target" / "tools" / "python-client"))

from meshkeep_client import Client  # noqa: E402
from meshkeep_client.api.clusters import get_cluster, list_clusters  # noqa: E402
from meshkeep_client.api.entries import get_entry, list_entries, list_rejected  # noqa: E402
from meshkeep_client.api.events import list_changes  # noqa: E402
from meshkeep_client.api.identities import get_identity, list_identities, list_identity_ips  # noqa: E402
from meshkeep_client.api.ipcache import get_ipcache_entry, list_ipcache, lookup_ip, lookup_ips  # noqa: E402
from meshkeep_client.api.nodes import get_node, list_nodes  # noqa: E402
from meshkeep_client.api.probes import get_livez, get_readyz  # noqa: E402
from meshkeep_client.api.services import (  # noqa: E402
    get_endpoint_slice,
    get_global_service,
    get_service,
    get_service_export,
    list_endpoint_slices,
    list_global_services,
    list_service_exports,
    list_services,
)
from meshkeep_client.api.status import get_status  # noqa: E402
from meshkeep_client.models import (  # noqa: E402
    Affinity,
    Cluster,
    EndpointSlice,
    Finding,
    Identity,
    IpcacheEntry,
    LookupRequest,
    Node,
    Problem,
    Service,
    ServiceExport,
    WatchEvent,
)
from meshkeep_client.types import Unset  # noqa: E402

PAGE_LIMIT = 50
# number of objects of each kind that are also read one by one
SINGLES = 20
# maximum number of addresses in one batch
BATCH = 10_000


def answered(answer, what):
    """Returns the answer. Exits if there is none or if it is a problem document."""
    if answer is None or isinstance(answer, Problem):
        raise SystemExit(f"{what}: {answer}")
    return answer


def read(module, client, limit, **parameters):
    """Reads all items of a list, page by page. All pages must have the position of the first."""
    items, token, position = [], None, None
    while True:
        more = {} if token is None else {"page_token": token}
        page = answered(module.sync(client=client, limit=limit, **parameters, **more), module.__name__)
        sequence = page.meta.position.rpartition(".")[2]
        position = position or sequence
        assert sequence == position, (page.meta.position, position)
        assert len(page.items) <= limit
        items += page.items
        if isinstance(page.next_page_token, Unset):
            return items
        token = page.next_page_token


def describe(event):
    """Describes an event by its object, decoded according to its kind."""
    object_ = event.object_
    if isinstance(object_, Node):
        return f"node {object_.cluster}/{object_.name}"
    if isinstance(object_, Service):
        return f"service {object_.cluster}/{object_.namespace}/{object_.name}"
    if isinstance(object_, IpcacheEntry):
        return f"ipcache {object_.prefix}"
    if isinstance(object_, Finding):
        return f"problem {object_.id}"
    assert isinstance(object_, (Cluster, EndpointSlice, Identity, ServiceExport)), event
    return event.kind


def follow(client, limit):
    """Applies the change stream, answer by answer, from a snapshot on. Returns a description of each object by key."""
    objects, parameters = {}, {"snapshot": True}
    while True:
        answer = answered(list_changes.sync(client=client, limit=limit, **parameters), "changes")
        for event in answer.events:
            if event.type_ == "reset":
                objects.clear()
            elif event.type_ == "upsert":
                objects[event.key] = describe(event)
            elif event.type_ == "delete":
                objects.pop(event.key, None)
        if not answer.more:
            assert answer.events[-1].type_ == "synced", answer.events[-1]
            assert answer.events[-1].position == answer.next_position
            return objects
        parameters = {"after": answer.next_position}


def synced(client, position=None):
    """Follows the stream until it has caught up, after a position if there is one."""
    headers = {} if position is None else {"Last-Event-ID": position}
    with client.get_httpx_client().stream("GET", "/v1/events", params={"kind": "node", "snapshot": "true"}, headers=headers) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                event = WatchEvent.from_dict(json.loads(line.removeprefix("data:")))
                if event.type_ == "synced":
                    return event
    raise SystemExit("the stream ended")


def unchanged(client):
    """Returns the status of a request with the ETag of the answer before."""
    tag = list_services.sync_detailed(client=client).headers["ETag"]
    return list_services.sync_detailed(client=client, if_none_match=tag).status_code


def without(members, *names):
    """Returns an answer as a dictionary without the named members."""
    return {name: value for name, value in members.to_dict().items() if name not in names}


def check_equal(single, listed, what):
    """Checks that the answer for one object is equal to the item of the list."""
    single = without(answered(single, what), "meta", "others")
    assert single == without(listed, "meta"), f"{what}: {single} is not {listed}"


def backend_id(backend):
    """Returns the fields that identify a backend."""
    return backend.cluster, backend.ip


def check_singles(client, found):
    for node in found["nodes"][:SINGLES]:
        check_equal(get_node.sync(node.cluster, node.name, client=client), node, "node")
    for service in found["services"][:SINGLES]:
        check_equal(get_service.sync(service.cluster, service.namespace, service.name, client=client), service, "service")
    for service in found["global"][:SINGLES]:
        single = answered(get_global_service.sync(service.namespace, service.name, client=client), "global service")
        assert [backend_id(one) for one in single.backends] == [backend_id(one) for one in service.backends], f"{single} is not {service}"
        chooser = service.clusters[0].cluster
        chosen = get_global_service.sync(service.namespace, service.name, client=client, affinity=Affinity.LOCAL, from_=chooser)
        chosen = answered(chosen, "choice")
        assert {one.cluster for one in chosen.backends} == {chooser}, chosen
        assert (chosen.selection.rule, chosen.selection.from_) == ("localActive", chooser), chosen
    for export in found["exports"][:SINGLES]:
        check_equal(get_service_export.sync(export.cluster, export.namespace, export.name, client=client), export, "service export")
    for part in found["slices"][:SINGLES]:
        check_equal(get_endpoint_slice.sync(part.cluster, part.namespace, part.name, client=client), part, "endpoint slice")
    for identity in found["identities"][:SINGLES]:
        check_equal(get_identity.sync(identity.id, client=client, cluster=[identity.cluster]), identity, "identity")
    for entry in found["ipcache"][:SINGLES]:
        single = answered(get_ipcache_entry.sync(entry.prefix, client=client, cluster=[entry.cluster]), "ipcache")
        entries = [without(single, "meta", "others"), *(other.to_dict() for other in single.others)]
        assert entry.to_dict() in entries, f"{entry} is not among {entries}"
        ips = read(list_identity_ips, client, PAGE_LIMIT, id=entry.identity)
        assert entry.to_dict() in [other.to_dict() for other in ips], f"{entry} is not among {ips}"
    for entry in found["entries"][:SINGLES]:
        response = get_entry.sync_detailed(entry.key, client=client)
        assert response.content == base64.b64decode(entry.value), entry.key
    for cluster in found["clusters"][:SINGLES]:
        assert answered(get_cluster.sync(cluster.name, client=client), "cluster").name == cluster.name
    missing = get_node.sync("nowhere", "nobody", client=client)
    assert isinstance(missing, Problem) and missing.code == "notFound", missing


def lookups(client, entries):
    """Looks up the address of each host entry in batches, and the first ones also alone."""
    ips = sorted({entry.prefix.rsplit("/", 1)[0] for entry in entries if entry.host})
    lines = []
    for start in range(0, len(ips), BATCH):
        batch = ips[start : start + BATCH]
        answer = answered(lookup_ips.sync(client=client, body=LookupRequest(ips=batch)), "lookup of a batch")
        assert [item.ip for item in answer.items] == batch
        lines += [f"{item.ip}={item.match.cluster}/{item.match.prefix}" for item in answer.items]
    for ip, line in list(zip(ips, lines, strict=True))[:SINGLES]:
        found = answered(lookup_ip.sync(client=client, ip=ip), "lookup")
        assert f"{ip}={found.match.cluster}/{found.match.prefix}" == line
    nothing = answered(lookup_ip.sync(client=client, ip="2001:db8:ffff::1"), "lookup of nothing")
    assert nothing.match is None, nothing
    return lines


def main(url, limit=PAGE_LIMIT):
    client = Client(base_url=url, timeout=30.0)
    assert get_livez.sync(client=client) == "ok"
    assert get_readyz.sync(client=client) == "ok"
    lists = {
        "clusters": list_clusters,
        "nodes": list_nodes,
        "services": list_services,
        "global": list_global_services,
        "exports": list_service_exports,
        "slices": list_endpoint_slices,
        "identities": list_identities,
        "ipcache": list_ipcache,
        "entries": list_entries,
        "rejected": list_rejected,
    }
    found = {kind: read(module, client, limit) for kind, module in lists.items()}
    check_singles(client, found)
    status = answered(get_status.sync(client=client), "status")
    snapshot = synced(client)
    summary = {
        "clusters": [cluster.name for cluster in found["clusters"]],
        "nodes": [f"{node.cluster}/{node.name}" for node in found["nodes"]],
        "services": [f"{service.cluster}/{service.namespace}/{service.name}" for service in found["services"]],
        "global": [f"{one.namespace}/{one.name}={','.join(part.cluster for part in one.clusters)}" for one in found["global"]],
        "exports": [f"{export.cluster}/{export.namespace}/{export.name}" for export in found["exports"]],
        "slices": [f"{part.cluster}/{part.namespace}/{part.name}" for part in found["slices"]],
        "identities": [f"{identity.cluster}/{identity.id}" for identity in found["identities"]],
        "ipcache": [f"{entry.cluster}/{entry.prefix}{' host' if entry.host else ''}" for entry in found["ipcache"]],
        "entries": [entry.key for entry in found["entries"]],
        "rejected": [entry.key for entry in found["rejected"]],
        "changes": follow(client, limit),
        "lookup": lookups(client, found["ipcache"]),
        "counts": status.counts.to_dict(),
        "unchanged": unchanged(client),
        "stream": [snapshot.mode, synced(client, snapshot.position).mode],
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:]))
