{{/* The agent's container, and what belongs to it. */}}

{{/* Its environment: upstream's, and with our image ours. */}}
{{- define "linkerd-cni.agentEnv" -}}
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
{{- if include "linkerd-cni.ours" . }}
- name: LINKERD_CNI_LOG_FORMAT
  value: {{ .Values.logFormat | default "plain" }}
- name: LINKERD_CNI_ADMIN_ADDR
  value: {{ include "linkerd-cni.listen" (dict "root" . "port" .Values.adminPort) | quote }}
- name: LINKERD_CNI_RESYNC_SECONDS
  value: {{ .Values.resyncSeconds | default 30 | int64 | quote }}
# Who it is, so that it can ask whether it is being upgraded or uninstalled.
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
# For how long it may ask.
- name: LINKERD_CNI_TERMINATION_GRACE_SECONDS
  value: {{ include "linkerd-cni.terminationGrace" . | quote }}
# Whose token it puts on the node for the plugin.
- name: LINKERD_CNI_PLUGIN_SERVICE_ACCOUNT
  value: linkerd-cni-plugin
{{- with .Values.cniConfFileName }}
- name: LINKERD_CNI_CONF_NAME
  value: {{ quote . }}
{{- end }}
- name: LINKERD_CNI_CHAINED
  value: {{ ne (toString .Values.chained) "false" | quote }}
- name: LINKERD_CNI_OWN_CONFIG
  value: {{ eq (toString .Values.ownConfig) "true" | quote }}
- name: LINKERD_CNI_REQUIRE_NETWORK_PLUGINS
  value: {{ and (ne (toString .Values.requireNetworkPlugins) "false") (not (include "linkerd-cni.binDirInUse" .)) | quote }}
- name: LINKERD_CNI_SELF_TEST
  value: {{ eq (include "linkerd-cni.selfTest" .) "true" | quote }}
{{- with .Values.startupTaint }}
- name: LINKERD_CNI_STARTUP_TAINT
  value: {{ quote . }}
{{- end }}
{{- end }}
{{- end }}

{{/* Seconds from SIGTERM to SIGKILL. */}}
{{- define "linkerd-cni.terminationGrace" -}}
{{- .Values.terminationGracePeriodSeconds | default 30 | int64 }}
{{- end }}

{{/* The user's variables; server-side apply would refuse a name that comes twice. */}}
{{- define "linkerd-cni.extraEnv" -}}
{{- $names := list }}
{{- range include "linkerd-cni.agentEnv" . | fromYamlArray }}
{{- $names = append $names .name }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if has .name $names }}
{{- fail (printf "extraEnv: %s is set by the chart, or comes twice" .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- with .Values.extraEnv }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Whether the agent proves the plugin in a network namespace made for it. */}}
{{- define "linkerd-cni.selfTest" -}}
{{- if and (include "linkerd-cni.ours" .) (ne (toString .Values.selfTest) "false") }}true{{ end }}
{{- end }}

{{/*
"true" if a release of linkerd2's chart, or linkerd2's image under this chart, used the
same bin dir: the runtime is known to find the plugin there, even if it holds none of
the primary CNI's plugins. linkerd2's agent removes its entry and its plugin when it
ends, so the agent that follows cannot see that on the node. An annotation keeps the
fact for later upgrades. Without a cluster, as under `helm template`, it is unknown.
*/}}
{{- define "linkerd-cni.binDirInUse" -}}
{{- $live := lookup "v1" "ConfigMap" .Release.Namespace "linkerd-cni-config" }}
{{- if and (include "linkerd-cni.ours" .) $live }}
{{- $dir := include "linkerd-cni.binDir" . | trimSuffix "/" }}
{{- $data := $live.data | default dict }}
{{- $noted := get ($live.metadata.annotations | default dict) "linkerd.io/cni-bin-dir-in-use" | default "" | trimSuffix "/" }}
{{- $upstream := not (contains "pod-detection" ($data.cni_network_config | default "pod-detection")) }}
{{- $used := trimSuffix "/" ($data.dest_cni_bin_dir | default "") }}
{{- if or (eq $noted $dir) (and $upstream (eq $used $dir)) }}true{{ end }}
{{- end }}
{{- end }}

{{/* Port and probes, which linkerd2's agent does not have. */}}
{{- define "linkerd-cni.agentProbes" -}}
ports:
  - name: install-admin
    containerPort: {{ int64 .Values.adminPort }}
# A slow node has a minute to get the agent going.
startupProbe:
  httpGet:
    path: /live
    port: install-admin
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 60
# Ready means that the plugin is verified on the node, so ask often: an upgrade
# and `helm install --wait` go as fast as this does.
readinessProbe:
  httpGet:
    path: /ready
    port: install-admin
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
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
    # Root without it cannot write to a directory of the node that belongs to
    # another user, as on some platforms.
    - DAC_OVERRIDE
    {{- if include "linkerd-cni.selfTest" . }}
    # The self-test makes a network namespace for itself, in which it calls the
    # plugin as the runtime would; no other namespace is entered.
    - SYS_ADMIN
    # There the plugin programs its rules.
    - NET_ADMIN
    {{- end }}
{{- end }}
readOnlyRootFilesystem: true
{{- end }}

{{- define "linkerd-cni.agent" -}}
# Neither command nor arguments: images of linkerd2 must run as well. No preStop:
# the agent is process 1 and takes SIGTERM itself.
- name: install-cni
  {{- include "linkerd-cni.image" . | nindent 2 }}
  env:
    {{- include "linkerd-cni.agentEnv" . | nindent 4 }}
    {{- with include "linkerd-cni.extraEnv" . }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- if include "linkerd-cni.ours" . }}
  {{- include "linkerd-cni.agentProbes" . | nindent 2 }}
  {{- end }}
  {{- with include "linkerd-cni.resources" .Values.resources }}
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
    {{- if not (include "linkerd-cni.oneDir" .) }}
    - name: cni-bin-dir
      mountPath: /host{{ include "linkerd-cni.binDir" . }}
    {{- end }}
    - name: cni-net-dir
      mountPath: /host{{ include "linkerd-cni.netDir" . }}
    - name: linkerd-tmp-dir
      mountPath: /tmp
{{- end }}
