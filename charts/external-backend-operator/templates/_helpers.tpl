{{/* The labels that the chart sets on every object. */}}
{{- define "external-backend.labels" -}}
app.kubernetes.io/name: external-backend
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | replace "+" "_" | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- end }}

{{/* The labels by which the manager's pods are selected. */}}
{{- define "external-backend.selector" -}}
app.kubernetes.io/name: external-backend
control-plane: controller-manager
{{- end }}

{{/*
Metadata from "name", "namespace" (by default the release's; empty: none), "labels" and "annotations".
The chart's own labels win over "labels", and these over commonLabels.
*/}}
{{- define "external-backend.metadata" -}}
name: {{ .name }}
{{- with hasKey . "namespace" | ternary .namespace .root.Release.Namespace }}
namespace: {{ . }}
{{- end }}
{{- $own := include "external-backend.labels" .root | fromYaml }}
labels: {{- merge (dict) $own (.labels | default dict) .root.Values.commonLabels | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
An object from files/, which `make manifests` writes. It moves to the release's namespace, and gets the chart's
labels and further "labels" and "annotations".
*/}}
{{- define "external-backend.object" -}}
{{- $object := .root.Files.Get .path | replace "external-backend-system" .root.Release.Namespace | fromYaml }}
{{- $was := $object.metadata }}
{{- $labels := merge (dict) (.labels | default dict) ($was.labels | default dict) }}
{{- $annotations := merge (dict) (.annotations | default dict) ($was.annotations | default dict) }}
{{- $metadata := include "external-backend.metadata" (dict "root" .root "name" $was.name
  "namespace" ($was.namespace | default "") "labels" $labels "annotations" $annotations) }}
{{- set $object "metadata" (fromYaml $metadata) | toYaml }}
{{- end }}

{{/* The Secret with the certificate of the metrics port. Empty: the manager makes a certificate. */}}
{{- define "external-backend.certificateSecret" -}}
{{- with .Values.metrics }}
{{- if and .enabled .secure }}
{{- .certificate.secretName | default (.certificate.certManager.enabled | ternary "external-backend-metrics-certificate" "") }}
{{- end }}
{{- end }}
{{- end }}

{{/* The name of the metrics Service, for which the certificate is valid. */}}
{{- define "external-backend.metricsHost" -}}
external-backend-controller-manager-metrics-service.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The name of the metrics port, which is also its scheme. */}}
{{- define "external-backend.metricsPort" -}}
{{- .Values.metrics.secure | ternary "https" "http" }}
{{- end }}

{{/* What the endpoints of ServiceMonitor and PodMonitor have in common. "monitor" has the values of one of them. */}}
{{- define "external-backend.scrape" -}}
path: /metrics
{{- /* The namespace of a series is that of its ExternalBackend. */}}
honorLabels: true
port: {{ include "external-backend.metricsPort" .root }}
scheme: {{ include "external-backend.metricsPort" .root }}
{{- if .root.Values.metrics.secure }}
tlsConfig:
{{- with include "external-backend.certificateSecret" .root }}
  ca:
    secret:
      name: {{ . }}
      key: ca.crt
  serverName: {{ include "external-backend.metricsHost" $.root }}
{{- else }}
  insecureSkipVerify: true
{{- end }}
{{- with .root.Values.metrics.tokenSecret }}
{{- if .name }}
authorization:
  type: Bearer
  credentials:
    name: {{ .name }}
    key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}
{{- with .monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with .monitor.relabelings }}
relabelings: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .monitor.metricRelabelings }}
metricRelabelings: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
