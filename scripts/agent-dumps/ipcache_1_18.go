//go:build cilium_1_18 || cilium_1_19

package main

import (
	"net"

	ipcachemap "github.com/cilium/cilium/pkg/maps/ipcache"
)

const hasPodCIDREntries = true

func bpfEntry(one entry) (key, value string) {
	ip := net.IP(one.prefix.Addr().AsSlice())
	mask := net.CIDRMask(one.prefix.Bits(), one.prefix.Addr().BitLen())
	var tunnel net.IP
	if one.host.IsValid() {
		tunnel = one.host.AsSlice()
	}
	var flags ipcachemap.RemoteEndpointInfoFlags
	if one.remoteNode {
		flags |= ipcachemap.FlagRemoteCluster
	}
	info := ipcachemap.NewValue(one.identity, tunnel, one.key, flags)
	return ipcachemap.NewKey(ip, mask, 0).String(), info.String()
}
