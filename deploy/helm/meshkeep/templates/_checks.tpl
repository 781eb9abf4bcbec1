{{/* Checks of combinations of values. The binary refuses most of them too, but only in the pod. */}}
{{- define "meshkeep.checks" -}}
{{- $tls := include "meshkeep.tlsSecretName" . -}}
{{- $who := or .Values.auth.tokenSecretName .Values.auth.clientCASecretName -}}
{{- if and .Values.service.enabled (not (and $tls $who)) (not .Values.auth.insecure) -}}
{{- fail "service.enabled lets the cluster ask for everything that is mirrored: give tls.secretName (or tls.certManager) and auth.tokenSecretName or auth.clientCASecretName, or accept that anybody may with auth.insecure" -}}
{{- end -}}
{{- if and .Values.clustermesh.caBundle.configMapName .Values.clustermesh.caBundle.secretName -}}
{{- fail "clustermesh.caBundle: the bundle is in a ConfigMap or in a Secret, not in both" -}}
{{- end -}}
{{- if and .Values.auth.clientCASecretName (not $tls) -}}
{{- fail "auth.clientCASecretName needs tls.secretName or tls.certManager: only TLS has client certificates" -}}
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
{{- fail "mode sidecar: a policy for clustermesh-apiserver's pod would cut off what Cilium needs there; write one for the whole pod" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") .Values.persistence.enabled -}}
{{- fail "mode sidecar: the pods of a Deployment share a claim, and a data directory has one process: set persistence.enabled=false" -}}
{{- end -}}
{{- if and (eq .Values.mode "sidecar") .Values.clustermesh.clusters -}}
{{- fail "mode sidecar: Cilium's own chart gives its pod the names of clustermesh.config.clusters" -}}
{{- end -}}
{{- if and (eq .Values.meshSize "custom") (not .Values.resources) -}}
{{- fail "meshSize custom needs resources" -}}
{{- end -}}
{{- end -}}
