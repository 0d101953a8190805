{{- define "sluicebox.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "sluicebox.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else if contains (include "sluicebox.name" .) .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "sluicebox.name" .) | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "sluicebox.selector" -}}
app.kubernetes.io/name: {{ include "sluicebox.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sluicebox.labels" -}}
{{ include "sluicebox.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "sluicebox.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "sluicebox.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The configuration file: config, which wins, over what the pod needs. */ -}}
{{- define "sluicebox.config" -}}
{{- $admin := dict "listen" (printf "0.0.0.0:%d" (int .Values.adminPort)) "token" "${file:/run/secrets/sluicebox/admin-token}" -}}
{{- $needed := dict "admin" $admin "log" (dict "format" "json") -}}
{{- toYaml (mustMerge (deepCopy .Values.config) $needed) -}}
{{- end -}}
