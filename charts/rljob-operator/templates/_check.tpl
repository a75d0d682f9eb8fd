{{/* What the schema can't say about values: it ends the installation with what to write instead, before anything is applied. */}}
{{- define "rljob-operator.check" -}}
{{- with .Values.prometheus }}
{{- if and .caConfigMap.name .caSecret.name }}
{{- fail "prometheus.caConfigMap.name and prometheus.caSecret.name are both set: the authorities come from one of them, leave the other empty" }}
{{- end }}
{{- if and .bearerTokenSecret.name .bearerTokenFile }}
{{- fail "prometheus.bearerTokenSecret.name and prometheus.bearerTokenFile are both set: the token comes from one of them, leave the other empty" }}
{{- end }}
{{- $token := or .bearerTokenSecret.name .bearerTokenFile }}
{{- if and $token .url (not (hasPrefix "https://" .url)) }}
{{- fail (printf "prometheus.url is %s, and a bearer token would be readable on its way: use https://, or leave the token out" .url) }}
{{- end }}
{{- range .bearerTokenUrls }}
{{- if not (has . $.Values.prometheus.allowedUrls) }}
{{- fail (printf "prometheus.bearerTokenUrls: %s is not one of prometheus.allowedUrls: add it there, or leave it out" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- if eq (int .Values.metrics.port) (int .Values.health.port) }}
{{- fail (printf "metrics.port and health.port are both %v: one port serves one of them" .Values.metrics.port) }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if has .name (list "RLJOB_OPERATOR_NAMESPACES" "RLJOB_OPERATOR_LEADER_ELECTION" "RLJOB_OPERATOR_METRICS_PORT" "RLJOB_OPERATOR_LIVENESS_ENDPOINT") }}
{{- fail (printf "extraEnv sets %s, on which other objects of the chart depend: set watchNamespaces, replicas, metrics.port or health.port" .name) }}
{{- end }}
{{- end }}
{{- end }}
