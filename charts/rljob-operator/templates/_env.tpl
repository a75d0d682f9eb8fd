{{/*
The environment of the operator: each RLJOB_OPERATOR_* variable that it knows, from the values. Durations are written as they stand there, and
defaults are written too, so that `kubectl describe` shows what an operator runs with.
*/}}
{{- define "rljob-operator.ownEnv" -}}
{{- with .Values.prometheus.url }}
- name: RLJOB_OPERATOR_PROMETHEUS_URL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.prometheus.allowedUrls }}
- name: RLJOB_OPERATOR_ALLOWED_PROMETHEUS_URLS
  value: {{ join "," . | quote }}
{{- end }}
{{- if or .Values.prometheus.caConfigMap.name .Values.prometheus.caSecret.name }}
- name: RLJOB_OPERATOR_PROMETHEUS_CA_FILE
  value: /etc/rljob-operator/prometheus-ca/ca.crt
{{- end }}
{{- with include "rljob-operator.tokenFile" . }}
- name: RLJOB_OPERATOR_PROMETHEUS_BEARER_TOKEN_FILE
  value: {{ . | quote }}
{{- end }}
{{- with .Values.prometheus.bearerTokenUrls }}
- name: RLJOB_OPERATOR_PROMETHEUS_BEARER_TOKEN_URLS
  value: {{ join "," . | quote }}
{{- end }}
- name: RLJOB_OPERATOR_SCRAPE_INTERVAL
  value: {{ .Values.prometheus.scrapeInterval | quote }}
{{- with .Values.watchNamespaces }}
- name: RLJOB_OPERATOR_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
- name: RLJOB_OPERATOR_METRICS_PORT
  value: {{ .Values.metrics.port | quote }}
- name: RLJOB_OPERATOR_LIVENESS_ENDPOINT
  value: http://0.0.0.0:{{ .Values.health.port }}/healthz
{{- if .Values.statusPage.enabled }}
- name: RLJOB_OPERATOR_STATUS_PAGE
  value: "true"
{{- end }}
{{- with .Values.operator }}
- name: RLJOB_OPERATOR_MOVE_TICK
  value: {{ .moveTick | quote }}
- name: RLJOB_OPERATOR_IDLE_TICK
  value: {{ .idleTick | quote }}
- name: RLJOB_OPERATOR_METRICS_WINDOW
  value: {{ .metricsWindow | quote }}
- name: RLJOB_OPERATOR_SETTLE_STEPS
  value: {{ .settleSteps | quote }}
- name: RLJOB_OPERATOR_POOL_LOST_AFTER
  value: {{ .poolLostAfter | quote }}
- name: RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE
  value: {{ .acknowledgeDeadline | quote }}
- name: RLJOB_OPERATOR_GONE_DEADLINE
  value: {{ .goneDeadline | quote }}
- name: RLJOB_OPERATOR_READY_DEADLINE
  value: {{ .readyDeadline | quote }}
{{- end }}
- name: RLJOB_OPERATOR_LEADER_ELECTION
  value: "true"
- name: RLJOB_OPERATOR_LEASE_NAMESPACE
  value: {{ .Release.Namespace | quote }}
- name: RLJOB_OPERATOR_LEASE_NAME
  value: {{ include "rljob-operator.leaseName" . | quote }}
- name: RLJOB_OPERATOR_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- with .Values.leaderElection }}
- name: RLJOB_OPERATOR_LEASE_DURATION
  value: {{ .leaseDuration | quote }}
- name: RLJOB_OPERATOR_RENEW_DEADLINE
  value: {{ .renewDeadline | quote }}
- name: RLJOB_OPERATOR_RENEW_PERIOD
  value: {{ .renewPeriod | quote }}
{{- end }}
{{- if eq .Values.compiledCode "emptyDir" }}
- name: NUMBA_CACHE_DIR
  value: /var/cache/rljob
{{- end }}
{{- end }}

{{/* All of the container's variables: the chart's, and those of the values. */}}
{{- define "rljob-operator.env" -}}
{{- include "rljob-operator.ownEnv" . | trim }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}
