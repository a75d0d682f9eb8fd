{{/* What the schema can't say about values: it ends the installation with what to write instead, before anything is applied. */}}
{{- define "rljob-operator.check" -}}
{{- include "rljob-operator.checkPrometheus" . }}
{{- include "rljob-operator.checkTimes" . }}
{{- include "rljob-operator.checkLabels" . }}
{{- include "rljob-operator.checkEnv" . }}
{{- if eq (int .Values.metrics.port) (int .Values.health.port) }}
{{- fail (printf "metrics.port and health.port are both %v: one port serves one of them" .Values.metrics.port) }}
{{- end }}
{{- end }}

{{- define "rljob-operator.checkPrometheus" -}}
{{- with .Values.prometheus }}
{{- if and .caConfigMap.name .caSecret.name }}
{{- fail "prometheus.caConfigMap.name and prometheus.caSecret.name are both set: the authorities come from one of them, leave the other empty" }}
{{- end }}
{{- if and .bearerTokenSecret.name .bearerTokenFile }}
{{- fail "prometheus.bearerTokenSecret.name and prometheus.bearerTokenFile are both set: the token comes from one of them, leave the other empty" }}
{{- end }}
{{- if or .bearerTokenSecret.name .bearerTokenFile }}
{{- /* A proxy beside the operator is not on anybody's way. */}}
{{- $secret := "^(https://|http://(localhost|127\\.0\\.0\\.1|\\[::1\\])([:/]|$))" }}
{{- if and .url (not (regexMatch $secret .url)) }}
{{- fail (printf "prometheus.url is %s, and a bearer token would be readable on its way: use https://, or leave the token out" .url) }}
{{- end }}
{{- range .bearerTokenUrls }}
{{- if not (regexMatch $secret .) }}
{{- fail (printf "prometheus.bearerTokenUrls: %s would make the bearer token readable on its way: use https://, or leave it out" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- range .bearerTokenUrls }}
{{- if not (has . $.Values.prometheus.allowedUrls) }}
{{- fail (printf "prometheus.bearerTokenUrls: %s is not one of prometheus.allowedUrls: add it there, or leave it out" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A duration such as 1h30m in seconds, as text. */}}
{{- define "rljob-operator.seconds" -}}
{{- $sum := 0.0 }}
{{- range $part := regexFindAll "[0-9.]+(ms|s|m|h)" . -1 }}
{{- $number := regexFind "^[0-9.]+" $part }}
{{- $unit := index (dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0) (trimPrefix $number $part) }}
{{- $sum = addf $sum (mulf (float64 $number) $unit) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Times with which the operator would end at once, or be ended again and again. */}}
{{- define "rljob-operator.checkTimes" -}}
{{- range $section, $names := dict
  "prometheus" (list "scrapeInterval")
  "operator" (list "moveTick" "idleTick" "metricsWindow" "poolLostAfter" "acknowledgeDeadline" "goneDeadline" "readyDeadline")
  "leaderElection" (list "leaseDuration" "renewDeadline" "renewPeriod") }}
{{- range $name := $names }}
{{- if le (include "rljob-operator.seconds" (index $.Values $section $name) | float64) 0.0 }}
{{- fail (printf "%s.%s is %s: write a time above zero" $section $name (index $.Values $section $name)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.operator }}
{{- if gt (include "rljob-operator.seconds" .idleTick | float64) 120.0 }}
{{- fail (printf "operator.idleTick is %s: write at most 120s, since the liveness probe ends an operator that looks at a job less often than every 5 minutes" .idleTick) }}
{{- end }}
{{- end }}
{{- with .Values.leaderElection }}
{{- $lease := include "rljob-operator.seconds" .leaseDuration | float64 }}
{{- $deadline := include "rljob-operator.seconds" .renewDeadline | float64 }}
{{- $period := include "rljob-operator.seconds" .renewPeriod | float64 }}
{{- if ne $lease (floor $lease) }}
{{- fail (printf "leaderElection.leaseDuration is %s: write whole seconds, as a Lease keeps it" .leaseDuration) }}
{{- end }}
{{- if not (and (lt $period $deadline) (lt $deadline $lease)) }}
{{- fail (printf "leaderElection: renewPeriod (%s), renewDeadline (%s) and leaseDuration (%s) have to grow in this order, otherwise two replicas could lead at once" .renewPeriod .renewDeadline .leaseDuration) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels by which the chart, helm and selectors know its objects. */}}
{{- define "rljob-operator.checkLabels" -}}
{{- $own := keys (include "rljob-operator.ownLabels" . | fromYaml) }}
{{- range $name, $labels := dict
  "commonLabels" .Values.commonLabels
  "podLabels" .Values.podLabels
  "monitoring.additionalLabels" .Values.monitoring.additionalLabels
  "rules.additionalLabels" .Values.rules.additionalLabels
  "dashboards.labels" .Values.dashboards.labels }}
{{- range $key, $_ := $labels }}
{{- if has $key $own }}
{{- fail (printf "%s sets %s, which the chart sets itself: leave it out, or choose another key" $name $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The value that a variable comes from, by its name. */}}
{{- define "rljob-operator.variables" -}}
RLJOB_OPERATOR_PROMETHEUS_URL: prometheus.url
RLJOB_OPERATOR_ALLOWED_PROMETHEUS_URLS: prometheus.allowedUrls
RLJOB_OPERATOR_PROMETHEUS_CA_FILE: prometheus.caConfigMap or prometheus.caSecret
RLJOB_OPERATOR_PROMETHEUS_BEARER_TOKEN_FILE: prometheus.bearerTokenSecret or prometheus.bearerTokenFile
RLJOB_OPERATOR_PROMETHEUS_BEARER_TOKEN_URLS: prometheus.bearerTokenUrls
RLJOB_OPERATOR_SCRAPE_INTERVAL: prometheus.scrapeInterval
RLJOB_OPERATOR_NAMESPACES: watchNamespaces
RLJOB_OPERATOR_METRICS_PORT: metrics.port
RLJOB_OPERATOR_LIVENESS_ENDPOINT: health.port
RLJOB_OPERATOR_STATUS_PAGE: statusPage.enabled
RLJOB_OPERATOR_MOVE_TICK: operator.moveTick
RLJOB_OPERATOR_IDLE_TICK: operator.idleTick
RLJOB_OPERATOR_METRICS_WINDOW: operator.metricsWindow
RLJOB_OPERATOR_SETTLE_STEPS: operator.settleSteps
RLJOB_OPERATOR_POOL_LOST_AFTER: operator.poolLostAfter
RLJOB_OPERATOR_ACKNOWLEDGE_DEADLINE: operator.acknowledgeDeadline
RLJOB_OPERATOR_GONE_DEADLINE: operator.goneDeadline
RLJOB_OPERATOR_READY_DEADLINE: operator.readyDeadline
RLJOB_OPERATOR_LEADER_ELECTION: replicas
RLJOB_OPERATOR_LEASE_NAMESPACE: the release's namespace
RLJOB_OPERATOR_LEASE_NAME: leaderElection.leaseName
RLJOB_OPERATOR_IDENTITY: the pod's name
RLJOB_OPERATOR_LEASE_DURATION: leaderElection.leaseDuration
RLJOB_OPERATOR_RENEW_DEADLINE: leaderElection.renewDeadline
RLJOB_OPERATOR_RENEW_PERIOD: leaderElection.renewPeriod
NUMBA_CACHE_DIR: compiledCode
{{- end }}

{{/* A name that is there twice is refused by helm 4, and by helm 3 the last one counts, of which other objects know nothing. */}}
{{- define "rljob-operator.checkEnv" -}}
{{- $from := include "rljob-operator.variables" . | fromYaml }}
{{- if ne .Values.compiledCode "emptyDir" }}
{{- $from = omit $from "NUMBA_CACHE_DIR" }}
{{- end }}
{{- $seen := list }}
{{- range .Values.extraEnv }}
{{- if hasKey $from .name }}
{{- fail (printf "extraEnv sets %s, which the chart sets itself: it comes from %s" .name (get $from .name)) }}
{{- end }}
{{- if has .name $seen }}
{{- fail (printf "extraEnv sets %s twice: leave one of them" .name) }}
{{- end }}
{{- $seen = append $seen .name }}
{{- end }}
{{- end }}
