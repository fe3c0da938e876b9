{{/* Helpers of the `helm test` pods. */}}

{{/* Where and as whom both pods run. */}}
{{- define "linkerd-cni.testPod" -}}
{{- with include "linkerd-cni.imagePullSecrets" . }}
{{- . }}
{{ end -}}
serviceAccountName: {{ include "linkerd-cni.serviceAccount" . | toYaml }}
nodeSelector:
  {{- include "linkerd-cni.nodeSelector" . | nindent 2 }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/*
"true" if the test is meaningful, else empty. It is not in an excluded namespace; if no candidate port is redirected; and with `chained: false`
without a NetworkAttachmentDefinition.
*/}}
{{- define "linkerd-cni.testable" -}}
{{- $called := or (ne (toString .Values.chained) "false") (eq (toString (.Values.networkAttachmentDefinition).enabled) "true") }}
{{- if and $called (not (has .Release.Namespace (.Values.excludeNamespaces | default list))) (include "linkerd-cni.testPorts" . | fromJson).outbound }}true{{ end }}
{{- end }}

{{/*
The first of "candidates" that is redirected, or empty. Argument: a dict with "candidates" and
"skipped", the ports and ranges that are not redirected.
*/}}
{{- define "linkerd-cni.redirectedPort" -}}
{{- $found := "" }}
{{- range $candidate := .candidates }}
{{- $skipped := false }}
{{- range $.skipped }}
{{- $ends := splitList "-" . }}
{{- if and (ge (int64 $candidate) (first $ends | int64)) (le (int64 $candidate) (last $ends | int64)) }}
{{- $skipped = true }}
{{- end }}
{{- end }}
{{- if not (or $skipped $found) }}
{{- $found = int64 $candidate | toString }}
{{- end }}
{{- end }}
{{- $found }}
{{- end }}

{{/*
The ports that the test connects to, as JSON with "inbound" and "outbound". Each is empty if no
candidate is redirected.
*/}}
{{- define "linkerd-cni.testPorts" -}}
{{- $linkerd := ((include "linkerd-cni.configData" . | fromYaml).cni_network_config | fromJson).linkerd }}
{{- /* Spread over the range of ports, so that ignored ranges seldom contain all of them. */}}
{{- $anywhere := list 20001 1404 80 8080 30303 45000 61616 65000 }}
{{- $own := list (get $linkerd "incoming-proxy-port" | int64 | toString) (get $linkerd "outgoing-proxy-port" | int64 | toString) }}
{{- $inbound := dict
      "candidates" (get $linkerd "ports-to-redirect" | default $anywhere)
      "skipped" (concat $own (include "linkerd-cni.portRanges" (get $linkerd "inbound-ports-to-ignore" | join ",") | fromJson).good) }}
{{- $outbound := dict
      "candidates" $anywhere
      "skipped" (concat $own (include "linkerd-cni.portRanges" (get $linkerd "outbound-ports-to-ignore" | default list | join ",") | fromJson).good) }}
{{- dict
      "inbound" (include "linkerd-cni.redirectedPort" $inbound)
      "outbound" (include "linkerd-cni.redirectedPort" $outbound) | toJson }}
{{- end }}

{{/* Image, command and environment of both containers. */}}
{{- define "linkerd-cni.testContainer" -}}
{{- include "linkerd-cni.image" . }}
command: [/usr/bin/linkerd2-cni-install, probe]
env:
  # Unique to this pod, and yet the chart renders the same text each time.
  - name: LINKERD_CNI_PROBE_TOKEN
    valueFrom:
      fieldRef:
        fieldPath: metadata.uid
  - name: LINKERD_CNI_PROBE_POD_IPS
    valueFrom:
      fieldRef:
        fieldPath: status.podIPs
{{- end }}

{{/* As the Pod Security level "restricted" requires: meshed pods need no privileges. */}}
{{- define "linkerd-cni.testSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- end }}
