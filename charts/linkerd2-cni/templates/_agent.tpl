{{/* The agent's container. */}}

{{/* Environment of the agent. */}}
{{- define "linkerd-cni.agentEnv" -}}
{{- $values := include "linkerd-cni.values" . | fromJson -}}
- name: DEST_CNI_NET_DIR
  valueFrom:
    configMapKeyRef:
      name: linkerd-cni-config
      key: dest_cni_net_dir
- name: DEST_CNI_BIN_DIR
  valueFrom:
    configMapKeyRef:
      name: linkerd-cni-config
      key: dest_cni_bin_dir
- name: CNI_NETWORK_CONFIG
  valueFrom:
    configMapKeyRef:
      name: linkerd-cni-config
      key: cni_network_config
- name: SLEEP
  value: "true"
- name: LINKERD_CNI_LOG_LEVEL
  value: {{ .Values.logLevel | default "info" | quote }}
- name: LINKERD_CNI_LOG_FORMAT
  value: {{ .Values.logFormat | default "plain" }}
- name: LINKERD_CNI_ADMIN_ADDR
  value: {{ include "linkerd-cni.listenAddress" (include "linkerd-cni.adminPort" .) | quote }}
# Identify the agent's DaemonSet and node. On SIGTERM the agent asks the API server whether they
# still exist, which tells an upgrade from an uninstall.
- name: LINKERD_CNI_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: LINKERD_CNI_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: LINKERD_CNI_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: LINKERD_CNI_DAEMONSET
  value: linkerd-cni
# Bounds the time for these requests.
- name: LINKERD_CNI_TERMINATION_GRACE_SECONDS
  value: {{ include "linkerd-cni.terminationGrace" . | quote }}
# ServiceAccount whose token the agent writes to the node for the plugin.
- name: LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT
  value: linkerd-cni-plugin
{{- with $values.cniConfFileName }}
- name: LINKERD_CNI_CONF_NAME
  value: {{ quote . }}
{{- end }}
- name: LINKERD_CNI_CHAINED
  value: {{ $values.chained | quote }}
- name: LINKERD_CNI_REQUIRE_NETWORK_PLUGINS
  value: {{ ne (toString .Values.requireNetworkPlugins) "false" | quote }}
# Directory of the record socket and the copy of the node's pods.
- name: LINKERD_CNI_RUN_DIR
  value: /run/linkerd-cni
- name: LINKERD_CNI_WATCH_PODS
  value: {{ include "linkerd-cni.watchPods" . | quote }}
- name: LINKERD_CNI_SELF_TEST
  value: {{ eq (include "linkerd-cni.selfTest" .) "true" | quote }}
{{- with .Values.startupTaint }}
- name: LINKERD_CNI_STARTUP_TAINT
  value: {{ quote . }}
{{- end }}
{{- end }}

{{/* Seconds from SIGTERM to SIGKILL. */}}
{{- define "linkerd-cni.terminationGrace" -}}
{{- .Values.terminationGracePeriodSeconds | default 30 | int64 }}
{{- end }}

{{/* "true" if the agent runs the self-test, else empty. */}}
{{- define "linkerd-cni.selfTest" -}}
{{- if ne (toString .Values.selfTest) "false" }}true{{ end }}
{{- end }}

{{/* "true" if the agent watches the pods of its node, else "false". */}}
{{- define "linkerd-cni.watchPods" -}}
{{- ne (toString .Values.watchPods) "false" }}
{{- end }}

{{/* Port of the agent's probes, metrics and status. Values of upstream's chart lack it. */}}
{{- define "linkerd-cni.adminPort" -}}
{{- .Values.adminPort | default 9991 | int64 }}
{{- end }}

{{/* Admin port and probes. */}}
{{- define "linkerd-cni.agentProbes" -}}
ports:
  - name: install-admin
    containerPort: {{ include "linkerd-cni.adminPort" . }}
startupProbe:
  {{- include "linkerd-cni.probe" (dict "values" .Values.startupProbe "probe" (include "linkerd-cni.startupProbe" .)) | nindent 2 }}
readinessProbe:
  {{- include "linkerd-cni.probe" (dict "values" .Values.readinessProbe "probe" (include "linkerd-cni.readinessProbe" .)) | nindent 2 }}
livenessProbe:
  {{- include "linkerd-cni.probe" (dict "values" .Values.livenessProbe "probe" (include "linkerd-cni.livenessProbe" .)) | nindent 2 }}
{{- end }}

{{/* Allows a slow node one minute to start the agent. */}}
{{- define "linkerd-cni.startupProbe" -}}
httpGet:
  path: /live
  port: install-admin
periodSeconds: 1
timeoutSeconds: 2
failureThreshold: 60
{{- end }}

{{/* Short period: rolling updates and `helm install --wait` wait for readiness on each node. */}}
{{- define "linkerd-cni.readinessProbe" -}}
httpGet:
  path: /ready
  port: install-admin
periodSeconds: 2
timeoutSeconds: 2
failureThreshold: 2
{{- end }}

{{- define "linkerd-cni.livenessProbe" -}}
httpGet:
  path: /live
  port: install-admin
timeoutSeconds: 5
failureThreshold: 6
{{- end }}

{{- define "linkerd-cni.agentSecurityContext" -}}
{{- if eq (toString .Values.privileged) "true" }}
privileged: true
{{- else }}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add:
    # Lets root write to CNI directories that belong to another user, as on some platforms.
    - DAC_OVERRIDE
    # Keeps the owner of a network config that belongs to another user or group, as on MicroK8s.
    - CHOWN
    {{- if include "linkerd-cni.selfTest" . }}
    # Lets the self-test create and enter a scratch network namespace. It enters no other.
    - SYS_ADMIN
    # Lets the plugin program redirect rules in the scratch network namespace.
    - NET_ADMIN
    {{- end }}
{{- end }}
readOnlyRootFilesystem: true
{{- end }}

{{- define "linkerd-cni.agent" -}}
# No preStop hook: the agent is process 1 and handles SIGTERM.
- name: install-cni
  {{- include "linkerd-cni.image" . | nindent 2 }}
  env:
    {{- include "linkerd-cni.agentEnv" . | nindent 4 }}
    {{- with include "linkerd-cni.extraEnv" (dict "name" "extraEnv" "values" .Values.extraEnv "env" (include "linkerd-cni.agentEnv" .)) }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- include "linkerd-cni.agentProbes" . | nindent 2 }}
  {{- with include "linkerd-cni.resources" (dict "values" .Values.resources "requests" (include "linkerd-cni.defaultRequests" . | fromYaml)) }}
  {{- . | nindent 2 }}
  {{- end }}
  securityContext:
    {{- $own := include "linkerd-cni.agentSecurityContext" . }}
    {{- $fields := include "linkerd-cni.withoutNulls" .Values.securityContext }}
    {{- if $fields }}
    {{- mustMergeOverwrite (fromYaml $own) (fromYaml $fields) | toYaml | nindent 4 }}
    {{- else }}
    {{- $own | trim | nindent 4 }}
    {{- end }}
  volumeMounts:
    {{- $mounts := include "linkerd-cni.agentMounts" . }}
    {{- $mounts | trim | nindent 4 }}
    {{- with include "linkerd-cni.extraItems" (dict "name" "extraVolumeMounts" "values" .Values.extraVolumeMounts "own" $mounts "key" "mountPath") }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end }}
