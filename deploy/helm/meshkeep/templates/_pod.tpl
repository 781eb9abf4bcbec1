{{/* Template of the pods of the StatefulSet, or of the announcer's Deployment. */}}
{{- define "meshkeep.podTemplate" -}}
metadata:
  labels:
    {{- include "meshkeep.selectorLabels" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "meshkeep.serviceAccountName" . }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  {{- if .Values.clustermesh.clusters }}
  # as in the pods of Cilium's chart
  hostAliases:
  {{- range $cluster := .Values.clustermesh.clusters }}
  {{- range .ips }}
  - ip: {{ . | quote }}
    hostnames: [{{ printf "%s.%s" $cluster.name $.Values.clustermesh.domain | quote }}]
  {{- end }}
  {{- end }}
  {{- end }}
  containers:
  - {{ include (ternary "meshkeep.announcer" "meshkeep.container" (eq .Values.mode "announce")) . | nindent 4 | trim }}
  volumes:
  {{- include (ternary "meshkeep.announcerVolumes" "meshkeep.volumes" (eq .Values.mode "announce")) . | nindent 2 }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* Requests and limits by the size of the mesh, based on the measurements in docs/operate/run.md,
"Memory and disk". There is no CPU limit, because it would only delay answers. Each memory limit is
above the threshold of the alert MeshkeepMemory for that number of keys. */}}
{{- define "meshkeep.resources" -}}
{{- if .Values.resources -}}
{{- toYaml .Values.resources -}}
{{- else if eq .Values.mode "announce" -}}
requests: {cpu: 10m, memory: 32Mi}
limits: {memory: 128Mi}
{{- else if eq .Values.meshSize "large" -}}
requests: {cpu: 500m, memory: 512Mi}
limits: {memory: 2Gi}
{{- else if eq .Values.meshSize "medium" -}}
requests: {cpu: 200m, memory: 320Mi}
limits: {memory: 1Gi}
{{- else -}}
requests: {cpu: 50m, memory: 96Mi}
limits: {memory: 768Mi}
{{- end -}}
{{- end -}}

{{/* A quantity in MiB, rounded down; 0 if it is empty: (list "persistence.size" .). */}}
{{- define "meshkeep.mebibytes" -}}
{{- $quantity := index . 1 | toString -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := regexFind "[A-Za-z]*$" $quantity -}}
{{- if and $quantity (not (hasKey $units $unit)) -}}
{{- fail (printf "%s: write %s as a number with Ki, Mi, Gi, Ti, k, M, G, T or without a unit" (index . 0) $quantity) -}}
{{- end -}}
{{- divf (mulf (trimSuffix $unit $quantity | default "0" | float64) (get $units $unit)) 1048576 | floor | int64 -}}
{{- end -}}

{{/* Memory limit in MiB, rounded down; 0 without a limit. */}}
{{- define "meshkeep.memoryLimit" -}}
{{- $limit := dig "limits" "memory" "" (include "meshkeep.resources" . | fromYaml) -}}
{{- include "meshkeep.mebibytes" (list "resources.limits.memory" $limit) -}}
{{- end -}}

{{/* Size of the volume: that of the store and that of the history. */}}
{{- define "meshkeep.volumeSize" -}}
{{- $size := include "meshkeep.mebibytes" (list "persistence.size" .Values.persistence.size) | int64 -}}
{{- if .Values.history.enabled -}}
{{- $maxBytes := .Values.history.maxBytes | trimSuffix "B" -}}
{{- $size = add $size (include "meshkeep.mebibytes" (list "history.maxBytes" $maxBytes) | int64) -}}
{{- end -}}
{{- if mod $size 1024 }}{{ $size }}Mi{{ else }}{{ div $size 1024 }}Gi{{ end -}}
{{- end -}}

{{/* Limit on one cluster's keys and values: half of the memory limit, because large decoded values and
answers need the rest, and at most 1 GiB. Empty without a memory limit. */}}
{{- define "meshkeep.clusterMaxBytes" -}}
{{- $limit := include "meshkeep.memoryLimit" . | int64 -}}
{{- if .Values.clusterMaxBytes -}}
{{- .Values.clusterMaxBytes -}}
{{- else if $limit -}}
{{- min 1024 (div $limit 2) }}MiB
{{- end -}}
{{- end -}}

{{/* True if extraArgs or extraEnv has a flag: (list . "token-file"). */}}
{{- define "meshkeep.isGiven" -}}
{{- $flag := index . 1 -}}
{{- $root := index . 0 -}}
{{- range $root.Values.extraArgs }}{{ if hasPrefix (printf "--%s=" $flag) (printf "%s=" .) }}true{{ end }}{{ end -}}
{{- range $root.Values.extraEnv }}{{ if eq .name (printf "MESHKEEP_%s" (upper $flag | replace "-" "_")) }}true{{ end }}{{ end -}}
{{- end -}}

{{/* True if the API has a certificate, from a Secret or from a volume in extraVolumes. */}}
{{- define "meshkeep.hasTLS" -}}
{{- if or (include "meshkeep.tlsSecretName" .) (include "meshkeep.isGiven" (list . "tls-cert")) }}true{{ end -}}
{{- end -}}

{{/* True if clients need a certificate. */}}
{{- define "meshkeep.hasClientCA" -}}
{{- if or .Values.auth.clientCASecretName (include "meshkeep.isGiven" (list . "client-ca")) }}true{{ end -}}
{{- end -}}

{{/* True if clients need a token. */}}
{{- define "meshkeep.hasToken" -}}
{{- if or .Values.auth.tokenSecretName (include "meshkeep.isGiven" (list . "token-file")) }}true{{ end -}}
{{- end -}}

{{/* Flags of the container. The data directory is a variable instead, so that `meshkeep doctor` in the pod uses it too. */}}
{{- define "meshkeep.args" -}}
{{- if .Values.reflect.enabled -}}
- reflect
- --to=/etc/meshkeep/to/{{ .Values.to.key }}
- --to-lease-ttl={{ .Values.to.leaseTTL }}
{{- range .Values.reflect.options }}
- --to-opt={{ . }}
{{- end }}
{{- else -}}
- serve
{{- end }}
- --clustermesh-config=/var/lib/cilium/clustermesh
{{- if .Values.service.enabled }}
- --listen={{ include "meshkeep.bind" (dict "address" .Values.bindAddress "port" .Values.ports.api) }}
{{- else }}
- --listen=127.0.0.1:{{ .Values.ports.api }}
{{- end }}
{{- if include "meshkeep.hasSocket" . }}
# for `kubectl exec`, which needs no certificate on this socket
- --listen=unix:///run/meshkeep/api.sock
{{- end }}
- --health-listen={{ include "meshkeep.bind" (dict "address" (include "meshkeep.healthAddress" .) "port" .Values.ports.health) }}
{{- if .Values.etcd.enabled }}
- --etcd-listen={{ include "meshkeep.bind" (dict "address" .Values.bindAddress "port" .Values.ports.etcd) }}
{{- end }}
{{- if .Values.clustermesh.clusterId }}
- --cluster-id={{ .Values.clustermesh.clusterId }}
{{- end }}
- --max-connected-clusters={{ .Values.clustermesh.maxConnectedClusters }}
{{- if .Values.service.enabled }}
{{- range include "meshkeep.serviceNames" . | fromJsonArray }}
- --allowed-host={{ . }}
{{- end }}
{{- end }}
{{- range .Values.allowedHosts }}
- --allowed-host={{ . }}
{{- end }}
{{- if include "meshkeep.tlsSecretName" . }}
- --tls-cert=/etc/meshkeep/tls/tls.crt
- --tls-key=/etc/meshkeep/tls/tls.key
{{- end }}
{{- if .Values.auth.clientCASecretName }}
- --client-ca=/etc/meshkeep/client-ca/ca.crt
{{- end }}
{{- if .Values.auth.tokenSecretName }}
- --token-file=/etc/meshkeep/token/token
{{- end }}
{{- if and (or .Values.service.enabled .Values.etcd.enabled) .Values.auth.insecure }}
- --insecure
{{- end }}
{{- if not .Values.history.enabled }}
- --history=off
{{- else }}
{{- if not (include "meshkeep.isGiven" (list . "history-max-age")) }}
- --history-max-age={{ .Values.history.maxAge }}
{{- end }}
{{- if not (include "meshkeep.isGiven" (list . "history-max-bytes")) }}
- --history-max-bytes={{ .Values.history.maxBytes }}
{{- end }}
{{- end }}
- --log-format={{ .Values.log.format }}
- --log-level={{ .Values.log.level }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* True if commands in the pod need a socket that requires no certificate and no token. */}}
{{- define "meshkeep.hasSocket" -}}
{{- if or .Values.service.enabled (include "meshkeep.hasTLS" .) (include "meshkeep.hasToken" .) (include "meshkeep.hasClientCA" .) }}true{{ end -}}
{{- end -}}

{{- define "meshkeep.bind" -}}
{{- if contains ":" .address }}{{ printf "[%s]:%v" .address .port }}{{ else }}{{ printf "%s:%v" .address .port }}{{ end -}}
{{- end -}}

{{/* A kubelet's probes use the pod's address. For commands in the container, loopback is enough. */}}
{{- define "meshkeep.healthAddress" -}}
{{- if or (eq .Values.probes.type "http") .Values.metrics.enabled }}{{ .Values.bindAddress }}{{ else }}127.0.0.1{{ end -}}
{{- end -}}

{{/* A probe of type `http` or `exec`, with its intervals. */}}
{{- define "meshkeep.probe" -}}
{{- if eq .root.Values.probes.type "http" -}}
httpGet: {path: {{ .path }}, port: mk-health}
{{- else -}}
exec:
  command:
  - /meshkeep
  - healthcheck
  {{- if eq .path "/livez" }}
  - --live
  {{- end }}
  - --server=http://127.0.0.1:{{ .root.Values.ports.health }}
{{- end }}
{{ toYaml .times }}
{{- end -}}

{{- define "meshkeep.container" -}}
name: meshkeep
image: {{ include "meshkeep.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
{{ include "meshkeep.args" . }}
env:
# a directory inside the volume, which meshkeep can make private: the volume's own
# directory belongs to root
- {name: MESHKEEP_DATA_DIR, value: /var/lib/meshkeep/data}
{{- /* a variable, because `meshkeep doctor` in the pod does not get the flags */}}
{{- if .Values.clustermesh.allowNone }}
- {name: MESHKEEP_ALLOW_NO_CLUSTERS, value: "true"}
{{- end }}
{{- with .Values.clustermesh.legacyClusters }}
- {name: MESHKEEP_LEGACY_CLUSTERS, value: {{ join "," . | quote }}}
{{- end }}
{{- with .Values.clustermesh.clusterName }}
- {name: MESHKEEP_CLUSTER_NAME, value: {{ . | quote }}}
{{- end }}
{{- if include "meshkeep.hasSocket" . }}
- {name: MESHKEEP_SERVER, value: "unix:///run/meshkeep/api.sock"}
{{- if .Values.auth.tokenSecretName }}
- {name: MESHKEEP_TOKEN_FILE, value: /etc/meshkeep/token/token}
{{- end }}
{{- end }}
{{- if not (include "meshkeep.isGiven" (list . "cluster-max-bytes")) }}
{{- with include "meshkeep.clusterMaxBytes" . }}
- {name: MESHKEEP_CLUSTER_MAX_BYTES, value: {{ . | quote }}}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
ports:
{{- if .Values.service.enabled }}
- {name: mk-api, containerPort: {{ .Values.ports.api }}, protocol: TCP}
{{- end }}
{{- if ne (include "meshkeep.healthAddress" .) "127.0.0.1" }}
- {name: mk-health, containerPort: {{ .Values.ports.health }}, protocol: TCP}
{{- end }}
{{- if .Values.etcd.enabled }}
- {name: mk-etcd, containerPort: {{ .Values.ports.etcd }}, protocol: TCP}
{{- end }}
livenessProbe:
  {{- include "meshkeep.probe" (dict "root" . "path" "/livez" "times" .Values.probes.liveness) | nindent 2 }}
{{- if ne .Values.mode "sidecar" }}
{{- /* in Cilium's pod a readiness probe would remove clustermesh-apiserver from its Service while meshkeep loads */}}
readinessProbe:
  {{- include "meshkeep.probe" (dict "root" . "path" "/readyz" "times" .Values.probes.readiness) | nindent 2 }}
{{- end }}
resources:
  {{- include "meshkeep.resources" . | nindent 2 }}
securityContext:
  {{- if eq .Values.mode "sidecar" }}
  {{- /* the pod's security context is Cilium's, and not every version of it has these members */}}
  {{- omit .Values.podSecurityContext "fsGroup" "fsGroupChangePolicy" | merge (deepCopy .Values.securityContext) | toYaml | nindent 2 }}
  {{- else }}
  {{- toYaml .Values.securityContext | nindent 2 }}
  {{- end }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
- {name: {{ include "meshkeep.volume" (list . "data") }}, mountPath: /var/lib/meshkeep}
- {name: {{ include "meshkeep.volume" (list . "clustermesh") }}, mountPath: /var/lib/cilium/clustermesh, readOnly: true}
{{- if include "meshkeep.hasSocket" . }}
- {name: {{ include "meshkeep.volume" (list . "run") }}, mountPath: /run/meshkeep}
{{- end }}
{{- if include "meshkeep.tlsSecretName" . }}
- {name: {{ include "meshkeep.volume" (list . "tls") }}, mountPath: /etc/meshkeep/tls, readOnly: true}
{{- end }}
{{- if .Values.auth.tokenSecretName }}
- {name: {{ include "meshkeep.volume" (list . "token") }}, mountPath: /etc/meshkeep/token, readOnly: true}
{{- end }}
{{- if .Values.auth.clientCASecretName }}
- {name: {{ include "meshkeep.volume" (list . "client-ca") }}, mountPath: /etc/meshkeep/client-ca, readOnly: true}
{{- end }}
{{- if .Values.reflect.enabled }}
- {name: {{ include "meshkeep.volume" (list . "to") }}, mountPath: /etc/meshkeep/to, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The container of mode announce. */}}
{{- define "meshkeep.announcer" -}}
name: meshkeep
image: {{ include "meshkeep.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
- announce
- --to=/etc/meshkeep/to/{{ .Values.to.key }}
- --lease-ttl={{ .Values.to.leaseTTL }}
- --max-withdrawal={{ .Values.announce.maxWithdrawal }}
- --log-format={{ .Values.log.format }}
- --log-level={{ .Values.log.level }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- range .Values.announce.files | keys | concat .Values.announce.configMapKeys | sortAlpha }}
- /etc/meshkeep/announce/{{ . }}
{{- end }}
{{- with .Values.extraEnv }}
env:
{{ toYaml . }}
{{- end }}
resources:
  {{- include "meshkeep.resources" . | nindent 2 }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
- {name: to, mountPath: /etc/meshkeep/to, readOnly: true}
- {name: files, mountPath: /etc/meshkeep/announce, readOnly: true}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "meshkeep.announcerVolumes" -}}
- name: to
  secret: {secretName: {{ .Values.to.secretName }}, defaultMode: 0440}
# a change of the ConfigMap reaches the announcer within about a minute, without a restart
- name: files
  configMap: {name: {{ .Values.announce.configMapName | default (printf "%s-files" (include "meshkeep.fullname" .)) }}}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name of a volume. In Cilium's pod it must differ from the names of Cilium's volumes. */}}
{{- define "meshkeep.volume" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.mode "sidecar" }}meshkeep-{{ index . 1 }}{{ else }}{{ index . 1 }}{{ end -}}
{{- end -}}

{{/* Mode 0440 (octal), so that the pod's fsGroup may read the files. */}}
{{- define "meshkeep.volumes" -}}
- name: {{ include "meshkeep.volume" (list . "clustermesh") }}
  projected:
    defaultMode: 0440
    sources:
    # without `items`: each entry of this Secret is the file of the cluster with its
    # name, and clusters can be added without a restart
    - secret: {name: {{ .Values.clustermesh.secretName }}, optional: true}
    {{- range $name, $secret := dict "common" .Values.clustermesh.remoteCertSecretName "local" .Values.clustermesh.localCertSecretName }}
    {{- if $secret }}
    - secret:
        name: {{ $secret }}
        optional: true
        items:
        - {key: tls.key, path: {{ $name }}-etcd-client.key}
        - {key: tls.crt, path: {{ $name }}-etcd-client.crt}
        {{- if not (or $.Values.clustermesh.caBundle.configMapName $.Values.clustermesh.caBundle.secretName) }}
        - {key: ca.crt, path: {{ $name }}-etcd-client-ca.crt}
        {{- end }}
    {{- end }}
    {{- end }}
    {{- with .Values.clustermesh.caBundle }}
    {{- range $source, $name := dict "configMap" .configMapName "secret" .secretName }}
    {{- if $name }}
    - {{ $source }}:
        name: {{ $name }}
        items:
        - {key: {{ $.Values.clustermesh.caBundle.key }}, path: common-etcd-client-ca.crt}
        - {key: {{ $.Values.clustermesh.caBundle.key }}, path: local-etcd-client-ca.crt}
    {{- end }}
    {{- end }}
    {{- end }}
{{- if not .Values.persistence.enabled }}
- name: {{ include "meshkeep.volume" (list . "data") }}
  emptyDir: {sizeLimit: {{ include "meshkeep.volumeSize" . }}}
{{- end }}
{{- if include "meshkeep.hasSocket" . }}
- name: {{ include "meshkeep.volume" (list . "run") }}
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}
{{- with include "meshkeep.tlsSecretName" . }}
- name: {{ include "meshkeep.volume" (list $ "tls") }}
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.auth }}
{{- if .tokenSecretName }}
- name: {{ include "meshkeep.volume" (list $ "token") }}
  secret: {secretName: {{ .tokenSecretName }}, defaultMode: 0440, items: [{key: {{ .tokenKey }}, path: token}]}
{{- end }}
{{- if .clientCASecretName }}
- name: {{ include "meshkeep.volume" (list $ "client-ca") }}
  secret: {secretName: {{ .clientCASecretName }}, defaultMode: 0440, items: [{key: {{ .clientCAKey }}, path: ca.crt}]}
{{- end }}
{{- end }}
{{- if .Values.reflect.enabled }}
- name: {{ include "meshkeep.volume" (list . "to") }}
  secret: {secretName: {{ .Values.to.secretName }}, defaultMode: 0440}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}
