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
image: {{ printf "%s:%s" ((.Values.image).name | default "cr.l5d.io/linkerd/cni-plugin") (include "linkerd-cni.imageVersion" .) }}
imagePullPolicy: {{ (.Values.image).pullPolicy | default "IfNotPresent" }}
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

{{/* The address that listens to all, with a port: the dict has "root" and "port". */}}
{{- define "linkerd-cni.listen" -}}
{{- if eq (toString .root.Values.disableIPv6) "false" }}[::]{{ else }}0.0.0.0{{ end }}:{{ int64 .port }}
{{- end }}

{{/*
The elements of a comma-separated list as a JSON object, since a define can only
return text: {"items": [...]}. Blanks around an element do not count.
*/}}
{{- define "linkerd-cni.list" -}}
{{- $items := list }}
{{- if not (kindIs "invalid" .) }}
{{- range splitList "," (include "linkerd-cni.string" .) }}
{{- with trim . }}
{{- $items = append $items . }}
{{- end }}
{{- end }}
{{- end }}
{{- dict "items" $items | toJson }}
{{- end }}

{{/*
As linkerd-cni.list, but of ports and ranges: the dict has "name" and "value".
The schema knows their form; bounds and order it cannot say.
*/}}
{{- define "linkerd-cni.ports" -}}
{{- $list := include "linkerd-cni.list" .value }}
{{- range $item := (fromJson $list).items }}
{{- $ends := splitList "-" $item }}
{{- if or (gt (first $ends | int64) 65535) (gt (last $ends | int64) 65535) }}
{{- fail (printf "%s: %q is above 65535, the highest port" $.name $item) }}
{{- end }}
{{- if gt (first $ends | int64) (last $ends | int64) }}
{{- fail (printf "%s: the range %q ends before it starts" $.name $item) }}
{{- end }}
{{- end }}
{{- $list }}
{{- end }}

{{/* Data of the ConfigMap, apart so that the DaemonSet can hash just this. */}}
{{- define "linkerd-cni.configData" -}}
{{- $inbound := list
      (.Values.proxyAdminPort | default 4191 | int64 | toString)
      (.Values.proxyControlPort | default 4190 | int64 | toString) }}
{{- $inbound = concat $inbound (include "linkerd-cni.ports" (dict "name" "ignoreInboundPorts" "value" .Values.ignoreInboundPorts) | fromJson).items }}
{{- $outbound := (include "linkerd-cni.ports" (dict "name" "ignoreOutboundPorts" "value" .Values.ignoreOutboundPorts) | fromJson).items }}
{{- $subnets := (include "linkerd-cni.list" .Values.skipSubnets | fromJson).items }}
{{- $redirected := list }}
{{- range (include "linkerd-cni.ports" (dict "name" "portsToRedirect" "value" .Values.portsToRedirect) | fromJson).items }}
{{- $redirected = append $redirected (int64 .) }}
{{- end }}
{{- $linkerd := dict
      "incoming-proxy-port" (.Values.inboundProxyPort | default 4143 | int64)
      "outgoing-proxy-port" (.Values.outboundProxyPort | default 4140 | int64)
      "proxy-uid" (.Values.proxyUID | default 2102 | int64)
      "ports-to-redirect" $redirected
      "inbound-ports-to-ignore" $inbound
      "simulate" false
      "use-wait-flag" (eq (toString .Values.useWaitFlag) "true")
      "iptables-mode" (.Values.iptablesMode | default "nft")
      "ipv6" (eq (toString .Values.disableIPv6) "false") }}
{{- /* 0 is a group, so `default` will not do. */}}
{{- if not (kindIs "invalid" .Values.proxyGID) }}
{{- if ge (int64 .Values.proxyGID) 0 }}
{{- $_ := set $linkerd "proxy-gid" (int64 .Values.proxyGID) }}
{{- end }}
{{- end }}
{{- if $outbound }}
{{- $_ := set $linkerd "outbound-ports-to-ignore" $outbound }}
{{- end }}
{{- if $subnets }}
{{- $_ := set $linkerd "subnets-to-ignore" $subnets }}
{{- end }}
{{- /* The agent puts the path of the kubeconfig in the placeholder's place. */}}
{{- $plugin := dict
      "name" "linkerd-cni"
      "type" "linkerd-cni"
      "log_level" (.Values.logLevel | default "info")
      "kubernetes" (dict "kubeconfig" "__KUBECONFIG_FILEPATH__")
      "linkerd" $linkerd -}}
dest_cni_net_dir: {{ include "linkerd-cni.netDir" . | quote }}
dest_cni_bin_dir: {{ include "linkerd-cni.binDir" . | quote }}
cni_network_config: |-
  {{- toPrettyJson $plugin | nindent 2 }}
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
{{- $pace := (.Values.updateStrategy).rollingUpdate | default dict }}
{{- $surge := $pace.maxSurge | default 0 | toString | trimSuffix "%" | int64 }}
{{- if and (gt $surge 0) (ne ($pace.maxUnavailable | default 0 | toString | trimSuffix "%") "0") }}
{{- fail "updateStrategy.rollingUpdate: maxSurge needs maxUnavailable: 0, since Kubernetes refuses both" }}
{{- end }}
{{- end }}
