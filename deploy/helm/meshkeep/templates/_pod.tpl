{{/* Requests and limits by the size of the mesh, based on the measurements in docs/operate/run.md,
"Memory and disk". There is no CPU limit, because it would only delay answers. Each memory limit is
above the threshold of the alert MeshkeepMemory for that number of keys. */}}
{{- define "meshkeep.resources" -}}
{{- if .Values.resources -}}
{{- toYaml .Values.resources -}}
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

{{/* Flags of the container. The data directory is a variable instead, so that `meshkeep doctor` in the pod uses it too. */}}
{{- define "meshkeep.args" -}}
- serve
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
{{- if and .Values.service.enabled .Values.auth.insecure }}
- --insecure
{{- end }}
- --log-format={{ .Values.log.format }}
- --log-level={{ .Values.log.level }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* True if commands in the pod need a socket that requires no certificate and no token. */}}
{{- define "meshkeep.hasSocket" -}}
{{- if or .Values.service.enabled (include "meshkeep.tlsSecretName" .) .Values.auth.tokenSecretName .Values.auth.clientCASecretName }}true{{ end -}}
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
  emptyDir: {sizeLimit: {{ .Values.persistence.size }}}
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
{{- end -}}
