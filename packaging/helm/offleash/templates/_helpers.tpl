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

{{- define "offleash.controllerName" -}}
{{- default (include "offleash.name" .) .Values.controller.name -}}
{{- end -}}

{{- /* Not the daemons' labels, by which their pods are found. */ -}}
{{- define "offleash.controllerSelector" -}}
app.kubernetes.io/name: offleash-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* What the controller does to the objects that it serves, and to what it makes for them. */ -}}
{{- define "offleash.controllerRules" -}}
- apiGroups: [agents.x-k8s.io]
  resources: [sandboxes]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [agents.x-k8s.io]
  resources: [sandboxes/status]
  verbs: [patch]
- apiGroups: [agents.x-k8s.io]
  resources: [sandboxes/finalizers]
  verbs: [update]
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxclaims]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxwarmpools, sandboxtemplates]
  verbs: [get, list, watch]
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxclaims/status, sandboxwarmpools/status]
  verbs: [patch]
- apiGroups: [extensions.agents.x-k8s.io]
  resources: [sandboxclaims/finalizers, sandboxwarmpools/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch, delete]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, create, patch, delete]
{{- end -}}
