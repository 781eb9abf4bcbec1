{{/* Requests and limits by the size of the mesh: docs/operate/run.md, "Memory and disk", has the measurements that they follow from. No limit of
processor time: it would make answers late for nothing. Each limit is above what the alert MeshkeepMemory fires at with that many keys. */}}
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

{{/* The flags. The data directory comes as a variable, so that `meshkeep doctor` in the pod looks there too. */}}
{{- define "meshkeep.args" -}}
- serve
- --clustermesh-config=/var/lib/cilium/clustermesh
{{- if .Values.service.enabled }}
- --listen={{ include "meshkeep.bind" (dict "address" .Values.bindAddress "port" .Values.ports.api) }}
{{- else }}
- --listen=127.0.0.1:{{ .Values.ports.api }}
{{- end }}
{{- if include "meshkeep.hasSocket" . }}
# for `kubectl exec`, which needs no certificate there
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

{{/* Whether commands in the pod need a way that asks for no certificate and no token. */}}
{{- define "meshkeep.hasSocket" -}}
{{- if or .Values.service.enabled (include "meshkeep.tlsSecretName" .) .Values.auth.tokenSecretName .Values.auth.clientCASecretName }}true{{ end -}}
{{- end -}}

{{- define "meshkeep.bind" -}}
{{- if contains ":" .address }}{{ printf "[%s]:%v" .address .port }}{{ else }}{{ printf "%s:%v" .address .port }}{{ end -}}
{{- end -}}

{{/* A kubelet asks by the pod's address. Where only commands in the container ask, loopback is enough. */}}
{{- define "meshkeep.healthAddress" -}}
{{- if or (eq .Values.probes.type "http") .Values.metrics.enabled }}{{ .Values.bindAddress }}{{ else }}127.0.0.1{{ end -}}
{{- end -}}

{{/* One probe: of `http` or `exec`, with its times. */}}
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
# a directory of its own inside the volume: meshkeep makes it private, which it could not the volume's root, that is root's
- {name: MESHKEEP_DATA_DIR, value: /var/lib/meshkeep/data}
{{- /* for `meshkeep doctor` in the pod too, which does not see the flags */}}
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
{{- /* In Cilium's pod it would take clustermesh-apiserver out of its Service whenever meshkeep loads. */}}
readinessProbe:
  {{- include "meshkeep.probe" (dict "root" . "path" "/readyz" "times" .Values.probes.readiness) | nindent 2 }}
{{- end }}
resources:
  {{- include "meshkeep.resources" . | nindent 2 }}
securityContext:
  {{- if eq .Values.mode "sidecar" }}
  {{- /* the pod's own context is Cilium's, and not every version has these there */}}
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

{{/* The name of a volume: in Cilium's pod ours must not meet one of theirs. */}}
{{- define "meshkeep.volume" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.mode "sidecar" }}meshkeep-{{ index . 1 }}{{ else }}{{ index . 1 }}{{ end -}}
{{- end -}}

{{/* Octal 0440: the pod's fsGroup may read them. */}}
{{- define "meshkeep.volumes" -}}
- name: {{ include "meshkeep.volume" (list . "clustermesh") }}
  projected:
    defaultMode: 0440
    sources:
    # no items: each entry of this Secret is a file for the cluster of its name, and a cluster comes without a restart
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
