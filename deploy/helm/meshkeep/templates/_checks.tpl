{{/* Rejects wrong combinations of values. The binary rejects most of them too, but only in the pod. */}}
{{- define "meshkeep.checks" -}}
{{- $tls := include "meshkeep.tlsSecretName" . -}}
{{- $clientAuth := or .Values.auth.tokenSecretName .Values.auth.clientCASecretName -}}
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
