{{- define "meshkeep.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of most objects. At most 48 characters: the longest suffix of a name is `-sidecar-patch`, and
a StatefulSet's pods have a label with its name and a hash. Both stay below 63. */}}
{{- define "meshkeep.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" -}}
{{- else if contains (include "meshkeep.name" .) .Release.Name -}}
{{- .Release.Name | trunc 48 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "meshkeep.name" .) | trunc 48 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "meshkeep.labels" -}}
app.kubernetes.io/name: {{ include "meshkeep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels that select the pods; for a sidecar those of clustermesh-apiserver. */}}
{{- define "meshkeep.selectorLabels" -}}
{{- if eq .Values.mode "sidecar" -}}
{{- toYaml .Values.sidecar.selectorLabels -}}
{{- else -}}
app.kubernetes.io/name: {{ include "meshkeep.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- end -}}

{{- define "meshkeep.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "meshkeep.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "meshkeep.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Host names of the Service. */}}
{{- define "meshkeep.serviceNames" -}}
{{- $name := include "meshkeep.fullname" . -}}
{{- $namespace := .Release.Namespace -}}
{{- $names := list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) (printf "%s.%s.svc.cluster.local" $name $namespace) -}}
{{- if eq .Values.mode "statefulset" -}}
{{- /* each replica, because a stream's position is only valid for the replica that sent it */ -}}
{{- range $number := until (int .Values.replicas) -}}
{{- $names = append $names (printf "%s-%d.%s-pods.%s.svc" $name $number $name $namespace) -}}
{{- end -}}
{{- end -}}
{{- $names | toJson -}}
{{- end -}}

{{- define "meshkeep.tlsSecretName" -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.secretName) -}}
{{- printf "%s-tls" (include "meshkeep.fullname" .) -}}
{{- else -}}
{{- .Values.tls.secretName -}}
{{- end -}}
{{- end -}}
