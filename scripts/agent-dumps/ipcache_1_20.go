//go:build cilium_1_20

package main

import ipcachemap "github.com/cilium/cilium/pkg/maps/ipcache"

const hasPodCIDREntries = true

func bpfEntry(one entry) (key, value string) {
	var flags ipcachemap.RemoteEndpointInfoFlags
	if one.remoteNode {
		flags |= ipcachemap.FlagRemoteCluster
	}
	info := ipcachemap.NewValue(one.identity, one.host, one.key, flags)
	return ipcachemap.NewKey(one.prefix, 0).String(), info.String()
}
