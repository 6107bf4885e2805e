{{/* Name of the release's objects. 47 characters leave room for the longest ending. */}}
{{- define "pointsman.fullname" -}}
{{- $made := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- .Values.fullnameOverride | default $made | trunc 47 | trimSuffix "-" | trimSuffix "." -}}
{{- end }}

{{- define "pointsman.controller" -}}
{{ include "pointsman.fullname" . }}-controller
{{- end }}

{{- define "pointsman.serviceAccount" -}}
{{- $account := .Values.serviceAccount | default dict -}}
{{- if $account.create -}}
{{ $account.name | default (include "pointsman.controller" .) }}
{{- else -}}
{{ $account.name | default "default" }}
{{- end -}}
{{- end }}

{{- define "pointsman.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "pointsman.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "pointsman.commonLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "pointsman.labels" -}}
{{ include "pointsman.commonLabels" . }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "pointsman.testLabels" -}}
{{ include "pointsman.commonLabels" . }}
app.kubernetes.io/component: test
{{- end }}

{{/* A scalar as the text that was meant: Helm reads numbers as floats, which print with an exponent. */}}
{{- define "pointsman.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{ printf "%.0f" . }}
{{- else -}}
{{ . | toString }}
{{- end -}}
{{- end }}

{{/* A map of text, whatever the kind of its values. */}}
{{- define "pointsman.textMap" -}}
{{- range $key, $value := . }}
{{ $key | quote }}: {{ include "pointsman.text" $value | quote }}
{{- end }}
{{- end }}

{{/* What the test's pods have of the operator's. */}}
{{- define "pointsman.testPod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- include "pointsman.textMap" . | trim | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
