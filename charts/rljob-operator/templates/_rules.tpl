{{/*
What the operator may do, and nothing else: no wildcard, no Secret, no change of an RLJob's spec. Here is the only place where that is
written; which part of it is in a ClusterRole and which in Roles depends on the namespaces that are watched.
*/}}

{{/* What is not in a namespace. */}}
{{- define "rljob-operator.clusterRules" -}}
# What there is room for.
- apiGroups: [""]
  resources: [nodes]
  verbs: [list, watch]
{{- if not .Values.watchNamespaces }}
# kopf follows which kinds there are, so that CRDs may come after the operator.
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  verbs: [list, watch]
{{- end }}
{{- end }}

{{/* What is in a namespace. */}}
{{- define "rljob-operator.namespaceRules" -}}
# The jobs: read, and report in their status alone.
- apiGroups: [rljob.dev]
  resources: [rljobs]
  verbs: [get, list, watch]
- apiGroups: [rljob.dev]
  resources: [rljobs/status]
  verbs: [update]
{{- if .Values.rbac.features.profiles }}
# What finished runs measured: read when a job is planned first, written when one completes, and never deleted.
- apiGroups: [rljob.dev]
  resources: [rljobprofiles]
  verbs: [get, create, patch]
{{- end }}
{{- if include "rljob-operator.openshift" . }}
# Children block the deletion of their RLJob until they are collected. Where OwnerReferencesPermissionEnforcement is on, setting such an
# owner reference needs this.
- apiGroups: [rljob.dev]
  resources: [rljobs/finalizers]
  verbs: [update]
{{- end }}
# Pods: all are watched, since any may hold GPUs; create is for the server-side dry run of a template, patch lifts the budget
# gate and names a shrink's victims.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [resourcequotas]
  verbs: [list, watch]
# Who else scales the children: the operator must not fight another autoscaler.
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [list, watch]
# The children.
- apiGroups: [""]
  resources: [configmaps, services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [apps]
  resources: [deployments, statefulsets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, watch]
{{- if .Values.rbac.features.companions }}
# What shuts sandboxes in.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, patch, delete]
# What a spec may cease to ask for: the driver, the sandboxes and their Services.
- apiGroups: [""]
  resources: [services]
  verbs: [delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [delete]
{{- end }}
# Decisions and refusals as events.
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}

{{/* What a replica may do in its own namespace: take part in the election, and nothing else. */}}
{{- define "rljob-operator.leaderRules" -}}
# A name can't be given for what does not exist yet.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "rljob-operator.leaseName" . | quote }}]
  verbs: [get, patch]
{{- end }}
