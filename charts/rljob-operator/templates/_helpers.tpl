{{/* The chart's name, or what replaces it. */}}
{{- define "rljob-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/*
Name of the Deployment, and the beginning of all other names. Longest suffix: -metrics, -leader. It ends as a label and as the name of a
Service, hence the limit.
*/}}
{{- define "rljob-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "rljob-operator.name" . }}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name of what is not in a namespace: installations that watch namespaces of their own may have the same name in several. */}}
{{- define "rljob-operator.clusterName" -}}
{{- $name := include "rljob-operator.fullname" . }}
{{- ternary (printf "%s-%s" $name .Release.Namespace) $name (gt (len .Values.watchNamespaces) 0) }}
{{- end }}

{{- define "rljob-operator.selectorLabels" -}}
app.kubernetes.io/name: rljob-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* The pod of `helm test`: no pod of the operator, so that no Service, policy or budget takes it for one. */}}
{{- define "rljob-operator.testLabels" -}}
app.kubernetes.io/name: rljob-operator-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* What the chart says of every object. */}}
{{- define "rljob-operator.ownLabels" -}}
{{- include "rljob-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The labels of every object. */}}
{{- define "rljob-operator.labels" -}}
{{- include "rljob-operator.merged" (list .Values.commonLabels (include "rljob-operator.ownLabels" . | fromYaml)) }}
{{- end }}

{{/* A list of maps as one; where two have the same key, the later one counts. Written one after the other they would have it twice. */}}
{{- define "rljob-operator.merged" -}}
{{- $found := dict }}
{{- range $map := . }}
{{- range $key, $value := $map }}
{{- $_ := set $found $key $value }}
{{- end }}
{{- end }}
{{- toYaml $found }}
{{- end }}

{{- define "rljob-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "rljob-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "rljob-operator.image" -}}
{{- with .Values.image }}
{{- if .digest }}
{{- printf "%s@%s" .repository .digest }}
{{- else }}
{{- printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}
{{- end }}
{{- end }}
{{- end }}

{{/* "true" if there is a standby, else nothing. There is an election in any case: how many replicas there are may change while they run. */}}
{{- define "rljob-operator.standby" -}}
{{- if gt (int .Values.replicas) 1 }}true{{ end }}
{{- end }}

{{- define "rljob-operator.leaseName" -}}
{{- default (include "rljob-operator.fullname" .) .Values.leaderElection.leaseName }}
{{- end }}

{{/* "true" on OpenShift, or where the values say that it is as there, else nothing. */}}
{{- define "rljob-operator.openshift" -}}
{{- $wish := toString .Values.rbac.features.openshift }}
{{- if or (eq $wish "true") (and (eq $wish "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) }}true{{ end }}
{{- end }}
