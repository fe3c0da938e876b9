{{/*
ValidatingAdmissionPolicies. They limit the permissions of the ServiceAccount of agent and repair
controller to the node of the caller and its tokens to a day, which RBAC cannot.
*/}}

{{/* "true" if policies may be created. Clusters without permission for roles have none for policies. */}}
{{- define "linkerd-cni.admissionPolicy" -}}
{{- if not (or (eq (toString (.Values.admissionPolicy).enabled) "false") (eq (toString (.Values.rbac).create) "false")) }}true{{ end }}
{{- end }}

{{/* "true" if the repair controller's permission to evict pods is limited, else empty. */}}
{{- define "linkerd-cni.admissionPolicyRepair" -}}
{{- if and (include "linkerd-cni.admissionPolicy" .) (include "linkerd-cni.repairs" .) (eq (include "linkerd-cni.repairMode" .) "delete") }}true{{ end }}
{{- end }}

{{/* "true" if the agent's permission to change nodes is limited, else empty. */}}
{{- define "linkerd-cni.admissionPolicyNode" -}}
{{- if and (include "linkerd-cni.admissionPolicy" .) .Values.startupTaint }}true{{ end }}
{{- end }}

{{/*
Version of the API that serves MutatingAdmissionPolicies, or a failure. Without a cluster, as with
`helm template`, no kind is known, and the version of Kubernetes decides.
*/}}
{{- define "linkerd-cni.mutatingPolicyVersion" -}}
{{- $kinds := .Capabilities.APIVersions }}
{{- $found := "" }}
{{- range $version, $since := dict "v1" ">=1.36.0-0" "v1beta1" ">=1.34.0-0" }}
{{- $version = printf "admissionregistration.k8s.io/%s" $version }}
{{- $served := ternary ($kinds.Has (printf "%s/MutatingAdmissionPolicy" $version)) (semverCompare $since $.Capabilities.KubeVersion.Version) ($kinds.Has "v1/Pod") }}
{{- if and $served (not $found) }}
{{- $found = $version }}
{{- end }}
{{- end }}
{{- if not $found }}
{{- fail (printf "networkAttachmentDefinition.annotatePods: Kubernetes %s does not serve MutatingAdmissionPolicies; use 1.36, or 1.34 with the feature gate MutatingAdmissionPolicy and the API admissionregistration.k8s.io/v1beta1, or annotate each meshed workload yourself" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- $found }}
{{- end }}

{{/* Selects the requests of the ServiceAccount. Other requests are not affected, also not by errors. */}}
{{- define "linkerd-cni.admissionAccount" -}}
- name: service-account
  expression: >-
    has(request.userInfo.username) && request.userInfo.username ==
    {{ printf "system:serviceaccount:%s:%s" .Release.Namespace (include "linkerd-cni.serviceAccount" .) | quote }}
{{- end }}

{{/* The node that the API server wrote into the token, as the token is bound to a pod; or "". */}}
{{- define "linkerd-cni.admissionNode" -}}
- name: node
  expression: request.userInfo.?extra[?"authentication.kubernetes.io/node-name"][?0].orValue("")
{{- end }}

{{/* Rejects tokens that are not bound to a pod, such as those of `kubectl create token`. */}}
{{- define "linkerd-cni.admissionHasNode" -}}
- expression: variables.node != ""
  reason: Forbidden
  message: >-
    the token names no node: only tokens that are bound to a pod of the DaemonSet linkerd-cni are
    accepted (admissionPolicy.enabled of the chart linkerd2-cni)
{{- end }}

{{/*
CEL expression: names of the fields that differ between two maps. Argument: a dict with
"old" and "new", two CEL expressions, and "except", a list of names.
*/}}
{{- define "linkerd-cni.admissionChangedFields" -}}
(dyn({{ .new }}).map(name, name) + dyn({{ .old }}).map(name, name)).filter(name,
!(name in {{ .except | toJson }}) && dyn({{ .new }})[?name] != dyn({{ .old }})[?name])
{{- end }}
