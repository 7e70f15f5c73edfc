{{- /* Other labels than nodes have: Services of nodes must not lead to a front. */ -}}
{{- define "offleash.frontSelector" -}}
app.kubernetes.io/name: offleash-front
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
