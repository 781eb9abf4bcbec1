//go:build cilium_1_16 || cilium_1_17

package main

import (
	"net"

	ipcachemap "github.com/cilium/cilium/pkg/maps/ipcache"
)

// Since 1.18, agents have entries for the pod CIDRs of nodes.
const hasPodCIDREntries = false

func bpfEntry(one entry) (key, value string) {
	ip := net.IP(one.prefix.Addr().AsSlice())
	mask := net.CIDRMask(one.prefix.Bits(), one.prefix.Addr().BitLen())
	info := ipcachemap.RemoteEndpointInfo{SecurityIdentity: one.identity, Key: one.key}
	if one.host.Is4() {
		copy(info.TunnelEndpoint[:], one.host.AsSlice())
	}
	return ipcachemap.NewKey(ip, mask, 0).String(), info.String()
}
