{{/*
Helpers of all templates. A value can be missing (`helm upgrade --reuse-values` from an older
chart) or null. So every read of a nested value is in parentheses and has a default.
*/}}

{{/*
Labels of every object: the recommended ones, upstream's and `commonLabels`. Omits `k8s-app`,
by which the DaemonSet selects its pods.
*/}}
{{- define "linkerd-cni.labels" -}}
{{- $labels := dict
      "app.kubernetes.io/component" "cni"
      "app.kubernetes.io/instance" .Release.Name
      "app.kubernetes.io/managed-by" .Release.Service
      "app.kubernetes.io/part-of" "linkerd"
      "app.kubernetes.io/version" .Chart.AppVersion
      "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") }}
{{- $fixed := dict
      "app.kubernetes.io/name" "linkerd-cni"
      "linkerd.io/cni-resource" "true" }}
{{- include "linkerd-cni.stringMap" (merge $fixed (omit (.Values.commonLabels | default dict) "k8s-app") $labels) }}
{{- end }}

{{/* Labels of the pods. No version, so that a new chart version alone does not replace the pods. */}}
{{- define "linkerd-cni.podLabels" -}}
{{- $fixed := dict
      "app.kubernetes.io/name" "linkerd-cni"
      "k8s-app" "linkerd-cni"
      "linkerd.io/cni-resource" "true" }}
{{- $labels := dict "app.kubernetes.io/instance" .Release.Name }}
{{- include "linkerd-cni.stringMap" (merge $fixed (.Values.podLabels | default dict) $labels) }}
{{- end }}

{{/* Annotations of the pods, except the checksum. The chart's win over `podAnnotations`. */}}
{{- define "linkerd-cni.podAnnotations" -}}
{{- $fixed := include "linkerd-cni.createdBy" . | fromYaml }}
{{- $_ := set $fixed "linkerd.io/inject" "disabled" }}
{{- if include "linkerd-cni.repairs" . }}
{{- $_ := set $fixed "kubectl.kubernetes.io/default-container" "install-cni" }}
{{- end }}
{{- include "linkerd-cni.stringMap" (merge $fixed (omit (.Values.podAnnotations | default dict) "checksum/config")) }}
{{- end }}

{{/* Node selector of the pods: Linux and `nodeSelector`. */}}
{{- define "linkerd-cni.nodeSelector" -}}
{{- include "linkerd-cni.stringMap" (merge (dict "kubernetes.io/os" "linux") (.Values.nodeSelector | default dict)) }}
{{- end }}

{{/*
Tolerations of the pods, or empty. Adds one for the startup taint, which only the agent on the
node removes.
*/}}
{{- define "linkerd-cni.tolerations" -}}
{{- $tolerations := .Values.tolerations | default list }}
{{- $all := false }}
{{- range $tolerations }}
{{- if and (eq .operator "Exists") (not .key) (not .effect) }}
{{- $all = true }}
{{- end }}
{{- end }}
{{- if and .Values.startupTaint (not $all) }}
{{- $tolerations = append $tolerations (dict "key" .Values.startupTaint "operator" "Exists") }}
{{- end }}
{{- with $tolerations }}{{ toYaml . }}{{ end }}
{{- end }}

{{/*
The key `imagePullSecrets`, or empty. The pods have it besides their ServiceAccount, so that a secret
that is added replaces pods whose image cannot be pulled.
*/}}
{{- define "linkerd-cni.imagePullSecrets" -}}
{{- $secrets := list }}
{{- range concat ((.Values.global).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) }}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- with uniq $secrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A map as YAML without null values, or empty. */}}
{{- define "linkerd-cni.withoutNulls" -}}
{{- $map := dict }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $map $key $value }}
{{- end }}
{{- end }}
{{- with $map }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* A map as YAML with its values as strings, without null values. */}}
{{- define "linkerd-cni.stringMap" -}}
{{- $map := dict }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $map $key (include "linkerd-cni.string" $value) }}
{{- end }}
{{- end }}
{{- toYaml $map }}
{{- end }}

{{/* A scalar as text. A whole number from a values file is a float, which would become 1e+06. */}}
{{- define "linkerd-cni.string" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Whether IPv6 is redirected: "true", "false", or "auto" where the kernel has IPv6. */}}
{{- define "linkerd-cni.ipv6" -}}
{{- if eq (toString .Values.disableIPv6) "auto" }}auto{{ else }}{{ eq (toString .Values.disableIPv6) "false" }}{{ end }}
{{- end }}

{{/* "true" if the repair controller runs, else empty. */}}
{{- define "linkerd-cni.repairs" -}}
{{- if ne (toString (.Values.repairController).enabled) "false" }}true{{ end }}
{{- end }}

{{/* Mode of the repair controller. Without security context it has no capability to enter pods. */}}
{{- define "linkerd-cni.repairMode" -}}
{{- $possible := ternary "delete" "in-place" (eq (toString (.Values.repairController).enableSecurityContext) "false") }}
{{- (.Values.repairController).mode | default $possible }}
{{- end }}

{{/* Port of the repair controller's health and metrics. */}}
{{- define "linkerd-cni.repairPort" -}}
{{- (.Values.repairController).adminPort | default 9990 | int64 }}
{{- end }}

{{/* "true" if the repair controller enters pods' network namespaces, else empty. */}}
{{- define "linkerd-cni.repairEntersPods" -}}
{{- $audit := (.Values.repairController).auditIntervalSeconds | default 0 | int64 }}
{{- if or (eq (include "linkerd-cni.repairMode" .) "in-place") (gt $audit 0) }}true{{ end }}
{{- end }}

{{/* Annotation with the program that created the object. Changes only with the image version. */}}
{{- define "linkerd-cni.createdBy" -}}
linkerd.io/created-by: {{ .Values.cliVersion | default (printf "linkerd/helm %s" (include "linkerd-cni.imageVersion" .)) | quote }}
{{- end }}

{{/* CNI net dir on the node. */}}
{{- define "linkerd-cni.netDir" -}}
{{- $values := include "linkerd-cni.values" . | fromJson }}
{{- $values.destCNINetDir }}
{{- end }}

{{/* CNI bin dir on the node. */}}
{{- define "linkerd-cni.binDir" -}}
{{- $values := include "linkerd-cni.values" . | fromJson }}
{{- $values.destCNIBinDir }}
{{- end }}

{{/*
Directory of the node that is mounted for the CNI directory ".". In /var/snap/NAME, `current` is a link
that `snap refresh` sets to the new revision. A mount follows a link only once, so the parent of the
link is mounted.
*/}}
{{- define "linkerd-cni.mountedDir" -}}
{{- regexReplaceAll "^(/var/snap/[^/]+)/current(/.*)?$" . "${1}" }}
{{- end }}

{{/*
Path of the mount of "linkerd-cni.mountedDir". The parent of a snap's link contains volumes of pods,
which the container must not keep mounted after the node has unmounted them.
*/}}
{{- define "linkerd-cni.mountPath" -}}
{{- $dir := include "linkerd-cni.mountedDir" . -}}
mountPath: /host{{ $dir }}
{{- if ne $dir . }}
mountPropagation: HostToContainer
{{- end }}
{{- end }}

{{/* "true" if one mount has both net dir and bin dir. Else empty. */}}
{{- define "linkerd-cni.sameDir" -}}
{{- $netDir := include "linkerd-cni.netDir" . | include "linkerd-cni.mountedDir" }}
{{- $binDir := include "linkerd-cni.binDir" . | include "linkerd-cni.mountedDir" }}
{{- if eq (trimSuffix "/" $netDir) (trimSuffix "/" $binDir) }}true{{ end }}
{{- end }}

{{/*
Listen address for all interfaces. Argument: the port. The kubelet probes the pod's first address,
whose family depends on the cluster, not on which families are redirected. If the kernel has no IPv6,
the programs serve IPv4 alone.
*/}}
{{- define "linkerd-cni.listenAddress" -}}
[::]:{{ . }}
{{- end }}

{{/*
Pace of a rolling update without null values, as JSON. The default surge gives way to
`maxUnavailable`: whoever sets only that, as for upstream's chart, means it.
*/}}
{{- define "linkerd-cni.rollingUpdate" -}}
{{- $pace := dict }}
{{- range $key, $value := ((.Values.updateStrategy).rollingUpdate) }}
{{- if kindIs "float64" $value }}
{{- $_ := set $pace $key (int64 $value) }}
{{- else if not (kindIs "invalid" $value) }}
{{- $_ := set $pace $key $value }}
{{- end }}
{{- end }}
{{- $surge := get $pace "maxSurge" | toString }}
{{- $unavailable := get $pace "maxUnavailable" | default 0 | toString | trimSuffix "%" | int64 }}
{{- if and (eq $surge "1") (gt $unavailable 0) }}
{{- $pace = dict "maxUnavailable" (get $pace "maxUnavailable") }}
{{- else if and $surge (ne $surge "0") (ne $surge "0%") }}
{{- /* Kubernetes' default is 1, which it rejects beside a surge. */}}
{{- $_ := set $pace "maxUnavailable" (get $pace "maxUnavailable" | default 0) }}
{{- end }}
{{- $pace | toJson }}
{{- end }}

{{/* Update strategy of the DaemonSet without null values, or empty. */}}
{{- define "linkerd-cni.updateStrategy" -}}
{{- $strategy := dict }}
{{- with (.Values.updateStrategy).type }}
{{- $_ := set $strategy "type" . }}
{{- end }}
{{- with include "linkerd-cni.rollingUpdate" . | fromJson }}
{{- $_ := set $strategy "rollingUpdate" . }}
{{- end }}
{{- with $strategy -}}
updateStrategy:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Fails for values that contradict each other, which the schema cannot express. */}}
{{- define "linkerd-cni.validate" -}}
{{- include "linkerd-cni.validateNames" . }}
{{- if and (include "linkerd-cni.repairs" .) (eq (include "linkerd-cni.adminPort" .) (include "linkerd-cni.repairPort" .)) }}
{{- fail (printf "adminPort: %s is the repair controller's port (repairController.adminPort), too; choose another port" (include "linkerd-cni.adminPort" .)) }}
{{- end }}
{{- if and (include "linkerd-cni.repairEntersPods" .) (include "linkerd-cni.repairs" .) (eq (toString (.Values.repairController).enableSecurityContext) "false") }}
{{- fail "repairController: mode in-place and audits enter pods' network namespaces, which requires enableSecurityContext: true" }}
{{- end }}
{{- include "linkerd-cni.validateImage" . }}
{{- if eq (include "linkerd-cni.serviceAccount" .) "default" }}
{{- fail "serviceAccount.name: every pod of the namespace may use the ServiceAccount default, and would get the agent's permissions; choose another name" }}
{{- end }}
{{- if and (eq (toString .Values.privileged) "true") (eq (toString (.Values.securityContext).allowPrivilegeEscalation) "false") }}
{{- fail "securityContext.allowPrivilegeEscalation: Kubernetes rejects false for a privileged container; set privileged=false or remove it" }}
{{- end }}
{{- include "linkerd-cni.validateMounts" . }}
{{- if eq (include "linkerd-cni.serviceAccount" .) "linkerd-cni-plugin" }}
{{- fail "serviceAccount.name: linkerd-cni-plugin is the plugin's ServiceAccount; choose another name" }}
{{- end }}
{{- if not (regexMatch "^(?i:off|panic|fatal|error|warn|warning|info|debug|trace)?$" (.Values.logLevel | default "")) }}
{{- fail (printf "logLevel: %q is not a log level: trace, debug, info, warn, error or off" .Values.logLevel) }}
{{- end }}
{{- /* The repair controller does not start with an invalid filter. */}}
{{- if include "linkerd-cni.repairs" . }}
{{- $directive := "^\\s*(linkerd_cni_repair_controller|([A-Za-z0-9_:.-]*(\\[[^,=\\]]*\\])?=)?(?i:off|panic|fatal|error|warn|warning|info|debug|trace))\\s*$" }}
{{- range splitList "," ((.Values.repairController).logLevel | default "info") }}
{{- if not (regexMatch $directive .) }}
{{- fail (printf "repairController.logLevel: %q is neither a level, such as info, nor a filter, such as linkerd_cni_repair_controller=debug" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name := list "proxyUID" "proxyGID" }}
{{- if gt (get $.Values $name | int64) 2147483647 }}
{{- fail (printf "%s: %s is above 2147483647, the highest ID in Kubernetes" $name (get $.Values $name)) }}
{{- end }}
{{- end }}
{{- if ne (toString (.Values.updateStrategy).type) "OnDelete" }}
{{- include "linkerd-cni.validateRollingUpdate" (include "linkerd-cni.rollingUpdate" . | fromJson) }}
{{- end }}
{{- end }}

{{/* Fails for a rolling update that Kubernetes rejects. Its default for maxUnavailable is 1. */}}
{{- define "linkerd-cni.validateRollingUpdate" -}}
{{- $surges := gt (.maxSurge | default 0 | toString | trimSuffix "%" | int64) 0 }}
{{- $unavailable := 1 }}
{{- if not (kindIs "invalid" .maxUnavailable) }}
{{- $unavailable = .maxUnavailable | toString | trimSuffix "%" | int64 }}
{{- end }}
{{- if and $surges (gt (int64 $unavailable) 0) }}
{{- fail "updateStrategy.rollingUpdate: maxSurge requires maxUnavailable: 0; Kubernetes rejects both together" }}
{{- end }}
{{- if not (or $surges (gt (int64 $unavailable) 0)) }}
{{- fail "updateStrategy.rollingUpdate: maxUnavailable: 0 requires maxSurge; otherwise no pod can be replaced" }}
{{- end }}
{{- end }}
