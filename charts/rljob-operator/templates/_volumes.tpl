{{/* What is mounted into the operator's container, and from where; nothing if there is nothing. */}}

{{- define "rljob-operator.tokenFile" -}}
{{- ternary "/etc/rljob-operator/prometheus-token/token" .Values.prometheus.bearerTokenFile (ne .Values.prometheus.bearerTokenSecret.name "") }}
{{- end }}

{{- define "rljob-operator.volumeMounts" -}}
{{- $mounts := list }}
{{- with .Values.prometheus }}
{{- if or .caConfigMap.name .caSecret.name }}
{{- $mounts = append $mounts (dict "name" "prometheus-ca" "mountPath" "/etc/rljob-operator/prometheus-ca" "readOnly" true) }}
{{- end }}
{{- if .bearerTokenSecret.name }}
{{- $mounts = append $mounts (dict "name" "prometheus-token" "mountPath" "/etc/rljob-operator/prometheus-token" "readOnly" true) }}
{{- end }}
{{- end }}
{{- if eq .Values.compiledCode "emptyDir" }}
{{- $mounts = append $mounts (dict "name" "compiled-code" "mountPath" "/var/cache/rljob") }}
{{- end }}
{{- with concat $mounts .Values.extraVolumeMounts }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{- define "rljob-operator.volumes" -}}
{{- $volumes := list }}
{{- with .Values.prometheus }}
{{- if .caConfigMap.name }}
{{- $items := list (dict "key" .caConfigMap.key "path" "ca.crt") }}
{{- $volumes = append $volumes (dict "name" "prometheus-ca" "configMap" (dict "name" .caConfigMap.name "items" $items)) }}
{{- end }}
{{- if .caSecret.name }}
{{- $items := list (dict "key" .caSecret.key "path" "ca.crt") }}
{{- $volumes = append $volumes (dict "name" "prometheus-ca" "secret" (dict "secretName" .caSecret.name "items" $items)) }}
{{- end }}
{{- if .bearerTokenSecret.name }}
{{- $items := list (dict "key" .bearerTokenSecret.key "path" "token") }}
{{- $volumes = append $volumes (dict "name" "prometheus-token" "secret" (dict "secretName" .bearerTokenSecret.name "items" $items)) }}
{{- end }}
{{- end }}
{{- if eq .Values.compiledCode "emptyDir" }}
{{- $volumes = append $volumes (dict "name" "compiled-code" "emptyDir" (dict "sizeLimit" "64Mi")) }}
{{- end }}
{{- with concat $volumes .Values.extraVolumes }}
{{- toYaml . }}
{{- end }}
{{- end }}
