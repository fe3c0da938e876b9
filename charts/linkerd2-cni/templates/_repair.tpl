{{/* The repair controller's container, and what belongs to it. */}}

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
{{- /* Variables, not arguments: linkerd2's controller would refuse those. */}}
{{- if include "linkerd-cni.ours" . }}
- name: LINKERD_CNI_REPAIR_CONTROLLER_MODE
  value: {{ include "linkerd-cni.repairMode" . }}
- name: LINKERD_CNI_REPAIR_CONTROLLER_AUDIT_SECONDS
  value: {{ $repair.auditIntervalSeconds | default 0 | int64 | quote }}
- name: LINKERD_CNI_REPAIR_CONTROLLER_RATE
  value: {{ $repair.ratePerMinute | default 60 | int64 | quote }}
# It acts only where the agent of the same pod is ready.
- name: LINKERD_CNI_REPAIR_CONTROLLER_AGENT_ADDR
  value: {{ printf "127.0.0.1:%d" (int64 .Values.adminPort) | quote }}
{{- if include "linkerd-cni.repairEnters" . }}
# Where the rules that pods should have are, below /host.
- name: DEST_CNI_NET_DIR
  valueFrom:
    configMapKeyRef:
      name: linkerd-cni-config
      key: dest_cni_net_dir
{{- end }}
{{- end }}
{{- end }}

{{- define "linkerd-cni.repairSecurityContext" -}}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- if include "linkerd-cni.repairEnters" . }}
  add:
    # To enter the network namespace of a pod,
    - SYS_ADMIN
    # and to read and program rules in it.
    - NET_ADMIN
  {{- end }}
readOnlyRootFilesystem: true
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "linkerd-cni.repair" -}}
{{- $repair := .Values.repairController | default dict -}}
- name: repair-controller
  {{- include "linkerd-cni.image" . | nindent 2 }}
  command: [/usr/lib/linkerd/linkerd-cni-repair-controller]
  args:
    - --admin-addr
    - {{ include "linkerd-cni.listen" (dict "root" . "port" 9990) | quote }}
    - --log-format
    - {{ $repair.logFormat | default "plain" }}
    - --log-level
    - {{ $repair.logLevel | default "info" | quote }}
  env:
    {{- include "linkerd-cni.repairEnv" . | nindent 4 }}
  ports:
    - name: repair-admin
      containerPort: 9990
  readinessProbe:
    httpGet:
      path: /ready
      port: repair-admin
    {{- if include "linkerd-cni.ours" . }}
    # Ready after its first list of pods, for which `helm install --wait` waits too.
    periodSeconds: 2
    failureThreshold: 30
    {{- else }}
    initialDelaySeconds: 10
    failureThreshold: 7
    {{- end }}
  livenessProbe:
    httpGet:
      path: /live
      port: repair-admin
  {{- with include "linkerd-cni.resources" $repair.resources }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- if ne (toString $repair.enableSecurityContext) "false" }}
  securityContext:
    {{- include "linkerd-cni.repairSecurityContext" . | nindent 4 }}
  {{- end }}
  {{- if include "linkerd-cni.repairEnters" . }}
  volumeMounts:
    # The namespaces of pods, new ones as well.
    - name: netns
      mountPath: /host/var/run/netns
      readOnly: true
      mountPropagation: HostToContainer
    # What the runtime knows of them: which pod, which namespace.
    - name: cni-cache
      mountPath: /host/var/lib/cni
      readOnly: true
    # The rules that pods should have.
    - name: cni-net-dir
      mountPath: /host{{ include "linkerd-cni.netDir" . }}
      readOnly: true
  {{- end }}
{{- end }}
