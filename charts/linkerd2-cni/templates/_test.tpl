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
