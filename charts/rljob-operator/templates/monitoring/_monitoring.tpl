{{/* What every endpoint of a monitor has: path, times, and labels of the target that win over those of its series. */}}
{{- define "rljob-operator.scraped" -}}
honorLabels: false
interval: {{ default .Values.prometheus.scrapeInterval .Values.monitoring.interval }}
{{- with .Values.monitoring.scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- end }}

{{/* Metadata of a monitor or a rule; dict of root, name and labels. */}}
{{- define "rljob-operator.monitoringMetadata" -}}
name: {{ .name | quote }}
namespace: {{ .root.Release.Namespace | quote }}
labels:
  {{- include "rljob-operator.merged" (list (include "rljob-operator.labels" .root | fromYaml) .labels) | nindent 2 }}
{{- end }}

{{/*
The groups of a file of rules; dict of root and file. Thresholds and the selector of the operator's series are put in, alerts get the link
to their runbook and the labels of the values, and those that are disabled are left out.
*/}}
{{- define "rljob-operator.ruleGroups" -}}
{{- $rules := .root.Values.rules }}
{{- $selector := default (printf "namespace=%q" .root.Release.Namespace) $rules.operatorSelector }}
{{- $text := .root.Files.Get .file | replace "${operator}" $selector }}
{{- range $name, $value := $rules.thresholds }}
{{- $text = replace (printf "${%s}" $name) (toString $value) $text }}
{{- end }}
{{- with regexFind "\\$\\{[A-Za-z]+\\}" $text }}
{{- fail (printf "rules.thresholds lacks %s: set it, or leave rules.thresholds to the chart's own values" (trimAll "${}" .)) }}
{{- end }}
{{- $runbooks := default "docs/alerts.md" $rules.runbookBaseUrl }}
{{- $groups := list }}
{{- range $group := (fromYaml $text).groups }}
{{- $kept := list }}
{{- range $rule := $group.rules }}
{{- if $rule.alert }}
{{- $_ := set $rule "labels" (mergeOverwrite $rule.labels $rules.alerts.labels) }}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s#%s" $runbooks (lower $rule.alert)) }}
{{- end }}
{{- if not (has (default "" $rule.alert) $rules.alerts.disabled) }}
{{- $kept = append $kept $rule }}
{{- end }}
{{- end }}
{{- if $kept }}
{{- $groups = append $groups (dict "name" $group.name "rules" $kept) }}
{{- end }}
{{- end }}
{{- if $groups }}
{{- toYaml $groups }}
{{- end }}
{{- end }}
