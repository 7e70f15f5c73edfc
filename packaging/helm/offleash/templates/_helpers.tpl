{{- define "offleash.name" -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{- define "offleash.selector" -}}
app.kubernetes.io/name: offleash
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "offleash.labels" -}}
{{ include "offleash.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "offleash.image" -}}
{{- required "image.repository is not said: name the image that has offleash" .Values.image.repository -}}
:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "offleash.containerSecurity" -}}
allowPrivilegeEscalation: {{ .Values.podSecurity.allowPrivilegeEscalation }}
privileged: false
readOnlyRootFilesystem: true
procMount: {{ .Values.podSecurity.procMount }}
capabilities:
  drop: [ALL]
{{- end -}}
