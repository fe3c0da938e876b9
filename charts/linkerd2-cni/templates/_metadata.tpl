{{/* Annotations of objects, and names of ServiceAccounts. */}}

{{/*
The key `annotations` with `commonAnnotations`, or empty. Argument: a dict with "root" and
optionally "own", annotations as YAML, which win.
*/}}
{{- define "linkerd-cni.annotations" -}}
{{- $own := .own | default "" | fromYaml }}
{{- with include "linkerd-cni.withoutNulls" (merge $own (.root.Values.commonAnnotations | default dict)) | fromYaml -}}
annotations:
  {{- include "linkerd-cni.stringMap" . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Name of the ServiceAccount of the pods. */}}
{{- define "linkerd-cni.serviceAccount" -}}
{{- (.Values.serviceAccount).name | default "linkerd-cni" }}
{{- end }}

{{/*
"true" if the agents need a Role that `helm uninstall` keeps, else empty. An agent uninstalls if its
ServiceAccount or its DaemonSet is gone. A ServiceAccount of the user stays, and without a Role the
API server does not tell the agent that the DaemonSet is gone.
*/}}
{{- define "linkerd-cni.keepsUninstallRole" -}}
{{- if and (ne (toString (.Values.rbac).create) "false") (eq (toString (.Values.serviceAccount).create) "false") }}true{{ end }}
{{- end }}
