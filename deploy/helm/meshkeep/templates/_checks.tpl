{{/* Rejects wrong combinations of values. The binary rejects most of them too, but only in the pod. */}}
{{- define "meshkeep.checks" -}}
{{- $tls := include "meshkeep.hasTLS" . -}}
{{- $clientCA := include "meshkeep.hasClientCA" . -}}
{{- $clientAuth := or (include "meshkeep.hasToken" .) $clientCA -}}
{{- /* as text, because a number from --set has another type than one from a file */ -}}
{{- $ports := list .Values.ports.api .Values.ports.health .Values.ports.etcd | toStrings -}}
{{- if lt (uniq $ports | len) 3 -}}
{{- fail "ports.api, ports.health and ports.etcd must be three different ports" -}}
{{- end -}}
{{- if and .Values.service.enabled .Values.etcd.enabled (eq (toString .Values.service.port) (toString .Values.etcd.port)) -}}
{{- fail "service.port and etcd.port must differ: they are ports of the same Service" -}}
{{- end -}}
{{- if eq .Values.mode "sidecar" -}}
{{- range $port := $ports -}}
{{- if has $port (list "2379" "2380" "9880" "9881" "9962" "9963" "9964") -}}
{{- fail (printf "mode sidecar: Cilium's containers in clustermesh-apiserver's pod use port %s: choose another one in ports" $port) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.etcd.enabled (not (and $tls $clientCA)) (not .Values.auth.insecure) -}}
{{- fail "etcd.enabled opens the whole mirror to the cluster, and etcd clients send no token: set tls.secretName (or tls.certManager) and auth.clientCASecretName, or allow every client with auth.insecure" -}}
{{- end -}}
{{- if and (or .Values.reflect.enabled (eq .Values.mode "announce")) (not .Values.to.secretName) -}}
{{- fail "reflect.enabled and mode announce need to.secretName, the Secret with the client file of the etcd to write into" -}}
{{- end -}}
{{- if eq .Values.mode "announce" -}}
{{- if or .Values.service.enabled .Values.etcd.enabled .Values.reflect.enabled .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled -}}
{{- fail "mode announce serves nothing: remove service, etcd, reflect, metrics.serviceMonitor and metrics.podMonitor, or install the mirror as a second release" -}}
{{- end -}}
{{- if not (or .Values.announce.files (and .Values.announce.configMapName .Values.announce.configMapKeys)) -}}
{{- fail "mode announce needs announce.files, or announce.configMapName and announce.configMapKeys" -}}
{{- end -}}
{{- if and .Values.announce.files (or .Values.announce.configMapName .Values.announce.configMapKeys) -}}
{{- fail "announce: set either files, or configMapName and configMapKeys, not both" -}}
{{- end -}}
{{- end -}}
{{- $limit := include "meshkeep.memoryLimit" . | int64 -}}
{{- with .Values.clusterMaxBytes -}}
{{- $unit := regexFind "[A-Za-z]*$" . -}}
{{- $bytes := mul (trimSuffix $unit . | int64) (get (dict "" 1 "B" 1 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824) $unit) -}}
{{- if and $limit (ge $bytes (mul $limit 1048576)) -}}
{{- fail (printf "clusterMaxBytes %s must be below the memory limit, which is %dMi" . $limit) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.service.enabled (not (and $tls $clientAuth)) (not .Values.auth.insecure) -}}
{{- fail "service.enabled opens the whole mirror to the cluster: set tls.secretName (or tls.certManager) and auth.tokenSecretName or auth.clientCASecretName, or allow every client with auth.insecure" -}}
{{- end -}}
{{- if and .Values.clustermesh.caBundle.configMapName .Values.clustermesh.caBundle.secretName -}}
{{- fail "clustermesh.caBundle: set either configMapName or secretName, not both" -}}
{{- end -}}
{{- if and .Values.auth.clientCASecretName (not $tls) -}}
{{- fail "auth.clientCASecretName needs tls.secretName or tls.certManager, because only TLS has client certificates" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled -}}
{{- fail "metrics.serviceMonitor and metrics.podMonitor would scrape everything twice: enable one" -}}
{{- end -}}
{{- if and (or .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled) (not .Values.metrics.enabled) -}}
{{- fail "a monitor needs metrics.enabled" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") (or .Values.networkPolicy.enabled .Values.networkPolicy.cilium.enabled) -}}
{{- fail "mode sidecar: a network policy for meshkeep would block connections that Cilium needs in clustermesh-apiserver's pod; write one policy for the whole pod" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") .Values.persistence.enabled -}}
{{- fail "mode sidecar: all pods of a Deployment would share the claim, but only one process can use a data directory: set persistence.enabled=false" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") .Values.clustermesh.clusters -}}
{{- fail "mode sidecar: Cilium's chart already adds the names of clustermesh.config.clusters to its pod: remove clustermesh.clusters" -}}
{{- end -}}
{{- if and (eq .Values.meshSize "custom") (not .Values.resources) -}}
{{- fail "meshSize custom needs resources" -}}
{{- end -}}
{{- end -}}
