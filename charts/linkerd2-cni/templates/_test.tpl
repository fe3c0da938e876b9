{{/* What `helm test` needs to know. */}}

{{/*
Whether it can tell anything, or nothing: linkerd2's image has no probe, and the
plugin leaves a namespace that is excluded alone, may redirect no port that is
tried, or waits for Multus to call it.
*/}}
{{- define "linkerd-cni.testable" -}}
{{- $called := or (ne (toString .Values.chained) "false") (eq (toString (.Values.networkAttachmentDefinition).enabled) "true") }}
{{- if and (include "linkerd-cni.ours" .) $called (not (has .Release.Namespace (.Values.excludeNamespaces | default list))) (include "linkerd-cni.testPorts" . | fromJson).outbound }}true{{ end }}
{{- end }}

{{/*
The first of some ports that is redirected, or nothing: the dict has "candidates"
and "skipped", the ports and ranges that are not.
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
The ports that the test connects to, as a JSON object with "inbound" and
"outbound"; either is empty where none is redirected.
*/}}
{{- define "linkerd-cni.testPorts" -}}
{{- $linkerd := ((include "linkerd-cni.configData" . | fromYaml).cni_network_config | fromJson).linkerd }}
{{- /* From all over, so that ranges to skip seldom have all of them. */}}
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

{{/* What both containers are told, and may do: nothing. */}}
{{- define "linkerd-cni.testContainer" -}}
{{- include "linkerd-cni.image" . }}
command: [/usr/bin/linkerd2-cni-install, probe]
env:
  # Known to this pod alone, and the same when the chart is rendered again.
  - name: LINKERD_CNI_PROBE_TOKEN
    valueFrom:
      fieldRef:
        fieldPath: metadata.uid
  - name: LINKERD_CNI_PROBE_POD_IPS
    valueFrom:
      fieldRef:
        fieldPath: status.podIPs
{{- end }}

{{/* As Pod Security's "restricted" wants it: meshed pods need no rights. */}}
{{- define "linkerd-cni.testSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- end }}
