{{/*
What the templates share. A value may be missing (`helm upgrade --reuse-values`
from an older chart) or null, so every read of a nested value is in parentheses
and has its default here or at its place.
*/}}

{{/*
Labels of every object: the recommended ones, upstream's, and the user's, but for
the one that the DaemonSet selects by and sets itself.
*/}}
{{- define "linkerd-cni.labels" -}}
{{- $labels := dict
      "app.kubernetes.io/component" "cni"
      "app.kubernetes.io/instance" .Release.Name
      "app.kubernetes.io/managed-by" .Release.Service
      "app.kubernetes.io/name" "linkerd-cni"
      "app.kubernetes.io/part-of" "linkerd"
      "app.kubernetes.io/version" .Chart.AppVersion
      "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") }}
{{- $fixed := dict "linkerd.io/cni-resource" "true" }}
{{- include "linkerd-cni.stringMap" (merge $fixed (omit (.Values.commonLabels | default dict) "k8s-app") $labels) }}
{{- end }}

{{/* Labels of the pods. No version: a new chart alone must not replace them. */}}
{{- define "linkerd-cni.podLabels" -}}
{{- $fixed := dict
      "app.kubernetes.io/name" "linkerd-cni"
      "k8s-app" "linkerd-cni"
      "linkerd.io/cni-resource" "true" }}
{{- include "linkerd-cni.stringMap" (merge $fixed (.Values.podLabels | default dict)) }}
{{- end }}

{{/* Annotations of the pods besides the checksum. The chart's own win. */}}
{{- define "linkerd-cni.podAnnotations" -}}
{{- $fixed := include "linkerd-cni.createdBy" . | fromYaml }}
{{- $_ := set $fixed "linkerd.io/inject" "disabled" }}
{{- if (.Values.repairController).enabled }}
{{- $_ := set $fixed "kubectl.kubernetes.io/default-container" "install-cni" }}
{{- end }}
{{- include "linkerd-cni.stringMap" (merge $fixed (omit (.Values.podAnnotations | default dict) "checksum/config")) }}
{{- end }}

{{/* Linux nodes only, whatever else is asked of them. */}}
{{- define "linkerd-cni.nodeSelector" -}}
{{- include "linkerd-cni.stringMap" (merge (dict "kubernetes.io/os" "linux") (.Values.nodeSelector | default dict)) }}
{{- end }}

{{/*
The pods' tolerations, or nothing. The agent must get to a node with the start-up
taint, as nobody else takes it off.
*/}}
{{- define "linkerd-cni.tolerations" -}}
{{- $tolerations := .Values.tolerations | default list }}
{{- $all := false }}
{{- range $tolerations }}
{{- if and (eq .operator "Exists") (not .key) (not .effect) }}
{{- $all = true }}
{{- end }}
{{- end }}
{{- if and .Values.startupTaint (not $all) (include "linkerd-cni.ours" .) }}
{{- $tolerations = append $tolerations (dict "key" .Values.startupTaint "operator" "Exists") }}
{{- end }}
{{- with $tolerations }}{{ toYaml . }}{{ end }}
{{- end }}

{{/*
Secrets for pulling the pods' image, or nothing: an account of the chart's has them
already, one from elsewhere may not.
*/}}
{{- define "linkerd-cni.imagePullSecrets" -}}
{{- if and .Values.imagePullSecrets (eq (toString (.Values.serviceAccount).create) "false") -}}
imagePullSecrets:
  {{- toYaml .Values.imagePullSecrets | nindent 2 }}
{{- end }}
{{- end }}

{{/* The pods' affinity, with upstream's `nodeAffinity` in it, or nothing. */}}
{{- define "linkerd-cni.affinity" -}}
{{- $affinity := include "linkerd-cni.withoutNulls" .Values.affinity | fromYaml }}
{{- with include "linkerd-cni.withoutNulls" .Values.nodeAffinity }}
{{- $_ := set $affinity "nodeAffinity" (fromYaml .) }}
{{- end }}
{{- with $affinity }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* A map as YAML without the keys that are null, or nothing. */}}
{{- define "linkerd-cni.withoutNulls" -}}
{{- $map := dict }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $map $key $value }}
{{- end }}
{{- end }}
{{- with $map }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* A map as YAML, its values made strings, those without a value left out. */}}
{{- define "linkerd-cni.stringMap" -}}
{{- $map := dict }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $map $key (include "linkerd-cni.string" $value) }}
{{- end }}
{{- end }}
{{- toYaml $map }}
{{- end }}

{{/* A scalar as text. A whole number from a file is a float: 1e+06 otherwise. */}}
{{- define "linkerd-cni.string" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* Tag of the image, with its digest if it has one. */}}
{{- define "linkerd-cni.imageVersion" -}}
{{- include "linkerd-cni.string" ((.Values.image).version | default .Chart.AppVersion) }}
{{- end }}

{{/* The image, as a container names it. */}}
{{- define "linkerd-cni.image" -}}
{{- $name := (.Values.image).name | default "cr.l5d.io/linkerd/cni-plugin" }}
{{- with (.Values.image).registry }}
{{- $name = printf "%s/%s" . (base $name) }}
{{- end }}
{{- $version := include "linkerd-cni.imageVersion" . }}
{{- with (.Values.image).digest }}
{{- $version = printf "%s@%s" (splitList "@" $version | first) . }}
{{- end -}}
image: {{ printf "%s:%s" $name $version | toYaml }}
imagePullPolicy: {{ (.Values.image).pullPolicy | default "IfNotPresent" }}
{{- end }}

{{/*
Whether the image is ours and not linkerd2's, which `adminPort` tells: linkerd2's
values lack it, and people who choose linkerd2's image set it to null.
*/}}
{{- define "linkerd-cni.ours" -}}
{{- if .Values.adminPort }}true{{ end }}
{{- end }}

{{/* "true", "false", or "auto" for the families that a pod has. */}}
{{- define "linkerd-cni.ipv6" -}}
{{- $asked := toString .Values.ipv6 }}
{{- if has $asked (list "true" "false") }}{{ $asked }}
{{- else if and (eq $asked "auto") (include "linkerd-cni.ours" .) }}auto
{{- else }}{{ eq (toString .Values.disableIPv6) "false" }}
{{- end }}
{{- end }}

{{/* The mode of the repair controller; linkerd2's knows but one. */}}
{{- define "linkerd-cni.repairMode" -}}
{{- if include "linkerd-cni.ours" . }}{{ (.Values.repairController).mode | default "delete" }}{{ else }}delete{{ end }}
{{- end }}

{{/* Whether the repair controller enters the network namespaces of pods, or nothing. */}}
{{- define "linkerd-cni.repairEnters" -}}
{{- $audit := (.Values.repairController).auditIntervalSeconds | default 0 | int64 }}
{{- if and (include "linkerd-cni.ours" .) (or (eq (include "linkerd-cni.repairMode" .) "in-place") (gt $audit 0)) }}true{{ end }}
{{- end }}

{{/* What made the object. It moves with the image, never with the chart alone. */}}
{{- define "linkerd-cni.createdBy" -}}
linkerd.io/created-by: {{ .Values.cliVersion | default (printf "linkerd/helm %s" (include "linkerd-cni.imageVersion" .)) | quote }}
{{- end }}

{{/* Directory of the network configuration on the node. */}}
{{- define "linkerd-cni.netDir" -}}
{{- .Values.destCNINetDir | default "/etc/cni/net.d" }}
{{- end }}

{{/* Directory of the plugins on the node. */}}
{{- define "linkerd-cni.binDir" -}}
{{- .Values.destCNIBinDir | default "/opt/cni/bin" }}
{{- end }}

{{/* Whether both are one directory, which can be mounted only once, or nothing. */}}
{{- define "linkerd-cni.oneDir" -}}
{{- if eq (include "linkerd-cni.netDir" . | trimSuffix "/") (include "linkerd-cni.binDir" . | trimSuffix "/") }}true{{ end }}
{{- end }}

{{/* The address that listens to all, with a port: the dict has "root" and "port". */}}
{{- define "linkerd-cni.listen" -}}
{{- $ipv6 := include "linkerd-cni.ipv6" .root }}
{{- $both := or (eq $ipv6 "true") (and (eq $ipv6 "auto") (eq (toString .root.Values.disableIPv6) "false")) -}}
{{ if $both }}[::]{{ else }}0.0.0.0{{ end }}:{{ int64 .port }}
{{- end }}

{{/*
A container's `resources` from upstream's shape, cpu.limit and so on, or nothing
when none is set: a bare key would be a null.
*/}}
{{- define "linkerd-cni.resources" -}}
{{- $resources := dict }}
{{- range $kind, $bounds := . }}
{{- range $bound, $quantity := $bounds }}
{{- $text := "" }}
{{- if not (kindIs "invalid" $quantity) }}
{{- $text = include "linkerd-cni.string" $quantity }}
{{- end }}
{{- if $text }}
{{- $plural := printf "%ss" $bound }}
{{- $_ := set $resources $plural (merge (dict $kind $text) (get $resources $plural | default dict)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with $resources -}}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The DaemonSet's `updateStrategy` without what has no value, or nothing. */}}
{{- define "linkerd-cni.updateStrategy" -}}
{{- $strategy := dict }}
{{- with (.Values.updateStrategy).type }}
{{- $_ := set $strategy "type" . }}
{{- end }}
{{- $pace := dict }}
{{- range $key, $value := ((.Values.updateStrategy).rollingUpdate) }}
{{- if kindIs "float64" $value }}
{{- $_ := set $pace $key (int64 $value) }}
{{- else if not (kindIs "invalid" $value) }}
{{- $_ := set $pace $key $value }}
{{- end }}
{{- end }}
{{- with $pace }}
{{- $_ := set $strategy "rollingUpdate" . }}
{{- end }}
{{- with $strategy -}}
updateStrategy:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Refuses what the schema cannot: values that contradict each other. */}}
{{- define "linkerd-cni.validate" -}}
{{- if and (.Values.repairController).enabled (eq (.Values.adminPort | default 0 | int64) 9990) }}
{{- fail "adminPort: 9990 is the repair controller's port; choose another" }}
{{- end }}
{{- if and (include "linkerd-cni.repairEnters" .) (.Values.repairController).enabled (eq (toString (.Values.repairController).enableSecurityContext) "false") }}
{{- fail "repairController: mode in-place and the audit enter pods' network namespaces, which enableSecurityContext: false leaves no right to" }}
{{- end }}
{{- if and (eq (toString .Values.chained) "false") (eq (toString .Values.ownConfig) "true") }}
{{- fail "ownConfig: it is a copy of a chain, so it needs chained: true" }}
{{- end }}
{{- if and (.Values.image).digest (contains "@" (include "linkerd-cni.imageVersion" .)) }}
{{- fail "image.digest: image.version has a digest already" }}
{{- end }}
{{- if and (eq (toString .Values.ownConfig) "true") .Values.cniConfFileName (not (hasSuffix ".conflist" .Values.cniConfFileName)) }}
{{- fail "cniConfFileName: with ownConfig it must end in .conflist, as a chain does" }}
{{- end }}
{{- /* With another our controller does not start; linkerd2's takes more. */}}
{{- if and (.Values.repairController).enabled (include "linkerd-cni.ours" .) }}
{{- $directive := "^\\s*(linkerd_cni_repair_controller|([A-Za-z0-9_:.-]*(\\[[^,=\\]]*\\])?=)?(?i:off|panic|fatal|error|warn|warning|info|debug|trace))\\s*$" }}
{{- range splitList "," ((.Values.repairController).logLevel | default "info") }}
{{- if not (regexMatch $directive .) }}
{{- fail (printf "repairController.logLevel: %q is neither a level, such as info, nor a filter, such as linkerd_cni_repair_controller=debug" .) }}
{{- end }}
{{- end }}
{{- end }}
{{- range $name := list "proxyUID" "proxyGID" }}
{{- if gt (get $.Values $name | int64) 2147483647 }}
{{- fail (printf "%s: %s is above 2147483647, the highest id that Kubernetes gives" $name (get $.Values $name)) }}
{{- end }}
{{- end }}
{{- if ne (toString (.Values.updateStrategy).type) "OnDelete" }}
{{- include "linkerd-cni.validatePace" ((.Values.updateStrategy).rollingUpdate | default dict) }}
{{- end }}
{{- end }}

{{/* Refuses a pace of updates that Kubernetes would, where maxUnavailable is 1 unless told. */}}
{{- define "linkerd-cni.validatePace" -}}
{{- $surges := gt (.maxSurge | default 0 | toString | trimSuffix "%" | int64) 0 }}
{{- $unavailable := 1 }}
{{- if not (kindIs "invalid" .maxUnavailable) }}
{{- $unavailable = .maxUnavailable | toString | trimSuffix "%" | int64 }}
{{- end }}
{{- if and $surges (gt (int64 $unavailable) 0) }}
{{- fail "updateStrategy.rollingUpdate: maxSurge needs maxUnavailable: 0, since Kubernetes refuses both" }}
{{- end }}
{{- if not (or $surges (gt (int64 $unavailable) 0)) }}
{{- fail "updateStrategy.rollingUpdate: maxUnavailable: 0 needs maxSurge, since no pod could be replaced" }}
{{- end }}
{{- end }}
