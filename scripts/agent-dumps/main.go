// Prints what the commands of cilium-dbg print on a node of a third cluster that is connected to
// the sample clusters, with the types and the printing functions of one version of Cilium.
//
// The tables follow the rules of Cilium's node manager and of its watcher of ip/v1 keys. They differ
// from the samples in three objects, so that a comparison has one difference of each kind: one object
// is missing, one is additional and one has another value.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sort"
	"strings"

	"github.com/cilium/cilium/api/v1/models"
	"github.com/cilium/cilium/pkg/command"
	"github.com/cilium/cilium/pkg/identity"
	"github.com/cilium/cilium/pkg/identity/cache"
	identitymodel "github.com/cilium/cilium/pkg/identity/model"
	ipcachetypes "github.com/cilium/cilium/pkg/ipcache/types"
	"github.com/cilium/cilium/pkg/labels"
	"github.com/cilium/cilium/pkg/node/addressing"
	nodetypes "github.com/cilium/cilium/pkg/node/types"
	"github.com/cilium/cilium/pkg/option"
	"github.com/cilium/cilium/pkg/source"
)

// An entry of the agent's ipcache.
type entry struct {
	prefix   netip.Prefix
	identity uint32
	host     netip.Addr
	key      uint8
	// Whether the entry is an address of a node of another cluster.
	remoteNode bool
	source     source.Source
	namespace  string
	pod        string
}

// The sample keys of both clusters in state form.
type sample struct {
	Etcd  string
	Key   string
	Value string
}

type samples struct {
	nodes      []nodetypes.Node
	pairs      []identity.IPIdentityPair
	identities map[uint32]string
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func readSamples(path string) samples {
	file, err := os.Open(path)
	check(err)
	defer file.Close()
	found := samples{identities: map[uint32]string{}}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line sample
		check(json.Unmarshal(lines.Bytes(), &line))
		cluster, isState := strings.CutSuffix(line.Etcd, "-etcd")
		if !isState || cluster == "local-kvstoremesh" {
			continue
		}
		switch {
		case strings.HasPrefix(line.Key, "cilium/state/nodes/v1/"):
			var node nodetypes.Node
			check(json.Unmarshal([]byte(line.Value), &node))
			node.Source = source.ClusterMesh
			found.nodes = append(found.nodes, node)
		case strings.HasPrefix(line.Key, "cilium/state/ip/v1/"):
			var pair identity.IPIdentityPair
			check(json.Unmarshal([]byte(line.Value), &pair))
			found.pairs = append(found.pairs, pair)
		case strings.HasPrefix(line.Key, "cilium/state/identities/v1/id/"):
			var id uint32
			_, err := fmt.Sscanf(line.Key, "cilium/state/identities/v1/id/%d", &id)
			check(err)
			found.identities[id] = line.Value
		}
	}
	check(lines.Err())
	return found
}

// The nodes of the agent's own cluster; the first one is the agent's own node.
func ownNodes() []nodetypes.Node {
	node := func(number string, from source.Source) nodetypes.Node {
		address := func(kind addressing.AddressType, ip string) nodetypes.Address {
			return nodetypes.Address{Type: kind, IP: net.ParseIP(ip)}
		}
		return nodetypes.Node{
			Name:    "berlin-worker-" + number,
			Cluster: "berlin",
			IPAddresses: []nodetypes.Address{
				address(addressing.NodeInternalIP, "172.18.3."+number),
				address(addressing.NodeInternalIP, "fc00:c111:3::"+number),
				address(addressing.NodeCiliumInternalIP, "10.3."+number+".10"),
			},
			IPv4HealthIP: net.ParseIP("10.3." + number + ".134"),
			ClusterID:    3,
			Source:       from,
		}
	}
	return []nodetypes.Node{node("1", source.Local), node("2", source.CustomResource)}
}

func toAddr(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

func host(ip net.IP) netip.Prefix {
	addr := toAddr(ip)
	return netip.PrefixFrom(addr, addr.BitLen())
}

// The rules of NodeUpdated in Cilium's pkg/node/manager/manager.go, without node encryption and
// without the host firewall.
func nodeEntries(node nodetypes.Node) []entry {
	var entries []entry
	nodeIP := toAddr(node.GetNodeIP(false))
	id := uint32(identity.ReservedIdentityRemoteNode)
	if node.Source == source.Local {
		id = uint32(identity.ReservedIdentityHost)
	}
	isRemote := node.Cluster != "berlin"
	for _, address := range node.IPAddresses {
		one := entry{prefix: host(address.IP), identity: id, remoteNode: isRemote, source: node.Source}
		if address.Type == addressing.NodeCiliumInternalIP {
			one.host = nodeIP
		}
		entries = append(entries, one)
	}
	if hasPodCIDREntries && node.Source != source.Local {
		for _, cidr := range append(node.GetIPv4AllocCIDRs(), node.GetIPv6AllocCIDRs()...) {
			prefix := netip.MustParsePrefix(cidr.String()).Masked()
			world := identity.ReservedIdentityWorldIPv4
			if prefix.Addr().Is6() {
				world = identity.ReservedIdentityWorldIPv6
			}
			entries = append(entries, entry{prefix: prefix, identity: uint32(world), host: nodeIP, key: node.EncryptionKey, source: node.Source})
		}
	}
	for _, ip := range []net.IP{node.IPv4HealthIP, node.IPv6HealthIP} {
		if ip != nil {
			entries = append(entries, entry{prefix: host(ip), identity: uint32(identity.ReservedIdentityHealth), host: nodeIP, key: node.EncryptionKey, source: node.Source})
		}
	}
	for _, ip := range []net.IP{node.IPv4IngressIP, node.IPv6IngressIP} {
		if ip != nil {
			entries = append(entries, entry{prefix: host(ip), identity: uint32(identity.ReservedIdentityIngress), host: nodeIP, key: node.EncryptionKey, source: node.Source})
		}
	}
	return entries
}

// The rules of OnUpdate in Cilium's pkg/ipcache/kvstore.go.
func pairEntry(pair identity.IPIdentityPair) entry {
	prefix := host(pair.IP)
	if pair.Mask != nil {
		ones, _ := pair.Mask.Size()
		prefix = netip.PrefixFrom(toAddr(pair.IP), ones)
	}
	id := uint32(pair.ID)
	if pair.ID == identity.ReservedIdentityHost {
		id = uint32(identity.ReservedIdentityRemoteNode)
	}
	return entry{prefix: prefix, identity: id, host: toAddr(pair.HostIP), key: pair.Key, source: source.ClusterMesh, namespace: pair.K8sNamespace, pod: pair.K8sPodName}
}

// The agent's whole ipcache, in the order of `cilium-dbg ip list`.
func ipcache(all samples) []entry {
	byPrefix := map[netip.Prefix]entry{}
	put := func(entries ...entry) {
		for _, one := range entries {
			byPrefix[one.prefix] = one
		}
	}
	for _, node := range append(all.nodes, ownNodes()...) {
		put(nodeEntries(node)...)
	}
	for _, pair := range all.pairs {
		put(pairEntry(pair))
	}
	prefix := netip.MustParsePrefix
	addr := netip.MustParseAddr
	put(
		entry{prefix: prefix("0.0.0.0/0"), identity: uint32(identity.ReservedIdentityWorldIPv4), source: source.Local},
		entry{prefix: prefix("::/0"), identity: uint32(identity.ReservedIdentityWorldIPv6), source: source.Local},
		entry{prefix: prefix("172.18.3.100/32"), identity: uint32(identity.ReservedIdentityKubeAPIServer), source: source.KubeAPIServer},
		// a CIDR of a policy
		entry{prefix: prefix("192.0.2.0/24"), identity: uint32(identity.IdentityScopeLocal) + 1, source: source.Generated},
		entry{prefix: prefix("10.3.1.21/32"), identity: 197123, host: addr("172.18.3.1"), source: source.CustomResource, namespace: "shop", pod: "front-7d9f-zxcvb"},
		entry{prefix: prefix("10.3.2.21/32"), identity: 197123, host: addr("172.18.3.2"), source: source.CustomResource, namespace: "shop", pod: "front-7d9f-poiuy"},
	)
	// the three differences
	delete(byPrefix, prefix("10.1.2.40/32"))
	put(entry{prefix: prefix("10.2.1.99/32"), identity: 131331, host: addr("172.18.2.1"), source: source.ClusterMesh, namespace: "shop", pod: "cart-55f4b-older"})
	moved := byPrefix[prefix("10.2.1.21/32")]
	moved.host = addr("172.18.2.2")
	put(moved)
	entries := make([]entry, 0, len(byPrefix))
	for _, one := range byPrefix {
		entries = append(entries, one)
	}
	sort.Slice(entries, func(i, j int) bool {
		one, other := entries[i].prefix, entries[j].prefix
		if one.Bits() != other.Bits() {
			return one.Bits() < other.Bits()
		}
		return one.Addr().Less(other.Addr())
	})
	return entries
}

// The map that `cilium-dbg bpf ipcache list` prints: the datapath has no tunnel endpoint for
// entries that the agent's own node hosts.
func bpfList(entries []entry) map[string][]string {
	list := map[string][]string{}
	for _, one := range entries {
		if one.host == netip.MustParseAddr("172.18.3.1") {
			one.host = netip.Addr{}
		}
		key, value := bpfEntry(one)
		list[key] = append(list[key], value)
	}
	return list
}

func ipList(entries []entry) []*models.IPListEntry {
	list := []*models.IPListEntry{}
	for _, one := range entries {
		cidr, id := one.prefix.String(), int64(one.identity)
		model := &models.IPListEntry{Cidr: &cidr, Identity: &id, EncryptKey: int64(one.key)}
		if one.host.IsValid() {
			model.HostIP = one.host.String()
		}
		if one.pod != "" {
			model.Metadata = &models.IPListEntryMetadata{Source: string(one.source), Namespace: one.namespace, Name: one.pod}
		}
		list = append(list, model)
	}
	sort.Slice(list, ipcachetypes.IPListEntrySlice(list).Less)
	return list
}

func identityList(all samples) []*models.Identity {
	list := []*models.Identity{}
	add := func(id uint32, lbls labels.Labels) {
		list = append(list, identitymodel.CreateModel(identity.NewIdentity(identity.NumericIdentity(id), lbls)))
	}
	identity.IterateReservedIdentities(func(id identity.NumericIdentity, one *identity.Identity) {
		list = append(list, identitymodel.CreateModel(one))
	})
	own := "k8s:app=front;k8s:io.cilium.k8s.policy.cluster=berlin;k8s:io.kubernetes.pod.namespace=shop;"
	add(197123, labels.NewLabelsFromSortedList(own))
	add(uint32(identity.IdentityScopeLocal)+1, labels.GetCIDRLabels(netip.MustParsePrefix("192.0.2.0/24")))
	// the three differences
	delete(all.identities, 133888)
	all.identities[65900] = strings.Replace(own, "berlin", "paris", 1)
	all.identities[68352] = strings.Replace(all.identities[68352], "app=db", "app=database", 1)
	for id, lbls := range all.identities {
		add(id, labels.NewLabelsFromSortedList(lbls))
	}
	sort.Slice(list, cache.IdentitiesModel(list).Less)
	return list
}

func nodeList(all samples) []*models.NodeElement {
	list := []*models.NodeElement{}
	for _, node := range append(ownNodes(), all.nodes...) {
		// the three differences
		switch node.Name {
		case "paris-worker-2":
			continue
		case "tokyo-worker-1":
			node.IPv4HealthIP = net.ParseIP("10.2.1.135")
		case "tokyo-worker-2":
			left := node
			left.Name, left.IPAddresses = "tokyo-worker-3", []nodetypes.Address{{Type: addressing.NodeInternalIP, IP: net.ParseIP("172.18.2.3")}}
			list = append(list, left.GetModel())
		}
		list = append(list, node.GetModel())
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

func main() {
	option.Config.EnableIPv4, option.Config.EnableIPv6 = true, true
	option.Config.ClusterName = "berlin"
	all := readSamples(os.Args[2])
	command.ForceJSON()
	switch form := os.Args[1]; form {
	case "bpf-ipcache":
		check(command.PrintOutput(bpfList(ipcache(all))))
	case "ip":
		check(command.PrintOutput(ipList(ipcache(all))))
	case "identity":
		check(command.PrintOutput(identityList(all)))
	case "node":
		check(command.PrintOutput(nodeList(all)))
	default:
		check(fmt.Errorf("%q is not one of bpf-ipcache, ip, identity and node", form))
	}
}
