{{/* The repair controller's container. */}}

{{- define "linkerd-cni.repairEnv" -}}
{{- $repair := .Values.repairController | default dict -}}
- name: LINKERD_CNI_REPAIR_CONTROLLER_NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: LINKERD_CNI_REPAIR_CONTROLLER_POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: LINKERD_CNI_REPAIR_CONTROLLER_MODE
  value: {{ include "linkerd-cni.repairMode" . }}
- name: LINKERD_CNI_REPAIR_CONTROLLER_DELETE_UNMANAGED
  value: {{ eq (toString $repair.deleteUnmanaged) "true" | quote }}
- name: LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS
  value: {{ $repair.auditIntervalSeconds | default 0 | int64 | quote }}
- name: LINKERD_CNI_REPAIR_CONTROLLER_RATE
  value: {{ $repair.ratePerMinute | default 60 | int64 | quote }}
# The controller repairs pods only while the agent of the same pod is ready.
- name: LINKERD_CNI_REPAIR_CONTROLLER_AGENT_ADDR
  value: {{ printf "127.0.0.1:%s" (include "linkerd-cni.adminPort" .) | quote }}
# The plugin entry in this directory, mounted under /host, determines which pods have which rules.
- name: DEST_CNI_NET_DIR
  valueFrom:
    configMapKeyRef:
      name: linkerd-cni-config
      key: dest_cni_net_dir
{{- end }}

{{- define "linkerd-cni.repairSecurityContext" -}}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- if include "linkerd-cni.repairEntersPods" . }}
  add:
    # Enters the network namespaces of pods.
    - SYS_ADMIN
    # Reads and programs redirect rules there.
    - NET_ADMIN
  {{- end }}
readOnlyRootFilesystem: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Ready after the first list of pods. `helm install --wait` waits for this. */}}
{{- define "linkerd-cni.repairReadinessProbe" -}}
httpGet:
  path: /ready
  port: repair-admin
periodSeconds: 2
failureThreshold: 30
{{- end }}

{{- define "linkerd-cni.repair" -}}
{{- $repair := .Values.repairController | default dict -}}
- name: repair-controller
  {{- include "linkerd-cni.image" . | nindent 2 }}
  command: [/usr/lib/linkerd/linkerd-cni-repair-controller]
  args:
    - --admin-addr
    - {{ include "linkerd-cni.listenAddress" (include "linkerd-cni.repairPort" .) | quote }}
    - --log-format
    - {{ $repair.logFormat | default "plain" }}
    - --log-level
    - {{ $repair.logLevel | default "info" | quote }}
  env:
    {{- include "linkerd-cni.repairEnv" . | nindent 4 }}
    {{- with include "linkerd-cni.extraEnv" (dict "name" "repairController.extraEnv" "values" $repair.extraEnv "env" (include "linkerd-cni.repairEnv" .)) }}
    {{- . | nindent 4 }}
    {{- end }}
  ports:
    - name: repair-admin
      containerPort: {{ include "linkerd-cni.repairPort" . }}
  readinessProbe:
    {{- include "linkerd-cni.probe" (dict "values" $repair.readinessProbe "probe" (include "linkerd-cni.repairReadinessProbe" .)) | nindent 4 }}
  livenessProbe:
    {{- include "linkerd-cni.probe" (dict "values" $repair.livenessProbe "probe" "httpGet: {path: /live, port: repair-admin}") | nindent 4 }}
  {{- with include "linkerd-cni.resources" (dict "values" $repair.resources "requests" (include "linkerd-cni.defaultRequests" . | fromYaml)) }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if ne (toString $repair.enableSecurityContext) "false" }}
  securityContext:
    {{- include "linkerd-cni.repairSecurityContext" . | nindent 4 }}
  {{- end }}
  volumeMounts:
    {{- if include "linkerd-cni.repairEntersPods" . }}
    # Network namespaces of pods, including pods that start later.
    - name: netns
      mountPath: /host/var/run/netns
      readOnly: true
      mountPropagation: HostToContainer
    # The runtime's records, which map pods to network namespaces.
    - name: cni-cache
      mountPath: /host/var/lib/cni
      readOnly: true
    {{- end }}
    # The plugin entry, which determines which pods have which rules.
    - name: cni-net-dir
      {{- include "linkerd-cni.netDir" . | include "linkerd-cni.mountPath" | nindent 6 }}
      readOnly: true
{{- end }}
