{{/* What the plugin is told, by way of the ConfigMap and the agent. */}}

{{/* How rules are programmed; linkerd2's plugin knows only programs of the node. */}}
{{- define "linkerd-cni.iptablesMode" -}}
{{- $mode := .Values.iptablesMode | default "auto" }}
{{- if include "linkerd-cni.ours" . }}{{ $mode }}
{{- else if has $mode (list "nft" "legacy" "plain") }}{{ $mode }}
{{- else }}nft
{{- end }}
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
As linkerd-cni.list, but of ports: the dict has "name" and "value". The schema
knows their form; bounds it cannot say.
*/}}
{{- define "linkerd-cni.ports" -}}
{{- $list := include "linkerd-cni.list" .value }}
{{- range $item := (fromJson $list).items }}
{{- if gt (int64 $item) 65535 }}
{{- fail (printf "%s: %q is above 65535, the highest port" $.name $item) }}
{{- end }}
{{- end }}
{{- $list }}
{{- end }}

{{/*
The elements of a list of ports and ranges as a JSON object, as linkerd2's chart
makes them: split at commas, nothing else changed. "items" has all of them, "good"
those that the plugin uses, without signs and leading zeros, "bad" those that it
ignores.
*/}}
{{- define "linkerd-cni.portRanges" -}}
{{- $items := list }}
{{- $good := list }}
{{- $bad := list }}
{{- $text := "" }}
{{- if not (kindIs "invalid" .) }}
{{- $text = include "linkerd-cni.string" . }}
{{- end }}
{{- if trim $text }}
{{- $items = splitList "," $text }}
{{- end }}
{{- range $item := $items }}
{{- $is := false }}
{{- if regexMatch "^[+]?0*[0-9]{1,5}(-[+]?0*[0-9]{1,5})?$" $item }}
{{- $plain := regexReplaceAll "(^|-)[+]?0*([0-9])" $item "${1}${2}" }}
{{- $ends := splitList "-" $plain }}
{{- if and (le (last $ends | int64) 65535) (le (first $ends | int64) (last $ends | int64)) }}
{{- $is = true }}
{{- $good = append $good $plain }}
{{- end }}
{{- end }}
{{- if not $is }}
{{- $bad = append $bad $item }}
{{- end }}
{{- end }}
{{- dict "items" $items "good" $good "bad" $bad | toJson }}
{{- end }}

{{/*
As linkerd-cni.portRanges, but refuses what no meshed pod starts with: the dict has
"name", "value" and "root".
*/}}
{{- define "linkerd-cni.skippedPorts" -}}
{{- $json := include "linkerd-cni.portRanges" .value }}
{{- $list := fromJson $json }}
{{- if $list.bad }}
{{- $wanted := "ports (0-65535) and ranges (lower-upper) are wanted, comma-separated and without blanks" }}
{{- if eq (toString .root.Values.strictAnnotations) "true" }}
{{- fail (printf "%s: %q is neither a port nor a range; %s (strictAnnotations)" .name (first $list.bad) $wanted) }}
{{- end }}
{{- if and (not $list.good) (eq .name "ignoreOutboundPorts") }}
{{- fail (printf "%s: %q is neither a port nor a range, and no other element is left, so that no meshed pod would start, nor does any with linkerd2's plugin; %s" .name (first $list.bad) $wanted) }}
{{- end }}
{{- end }}
{{- $json }}
{{- end }}

{{/*
As linkerd-cni.list, but of CIDRs. The plugin fails every meshed pod for one that is
none, so it is refused here.
*/}}
{{- define "linkerd-cni.subnets" -}}
{{- $list := include "linkerd-cni.list" . }}
{{- $v4 := "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])" }}
{{- $word := "[0-9A-Fa-f]{1,4}" }}
{{- $v6 := printf "(%[1]s:){7}%[1]s|(%[1]s(:%[1]s){0,6})?::(%[1]s(:%[1]s){0,6}|(%[1]s:){0,5}%[2]s)?" $word $v4 }}
{{- $cidr := printf "^(%s/(3[0-2]|[12]?[0-9])|(%s)/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$" $v4 $v6 }}
{{- range (fromJson $list).items }}
{{- if not (regexMatch $cidr .) }}
{{- fail (printf "skipSubnets: %q is not a CIDR, such as 10.0.0.0/8 or fd00::/8" .) }}
{{- end }}
{{- end }}
{{- $list }}
{{- end }}

{{/* Data of the ConfigMap, apart so that the DaemonSet can hash just this. */}}
{{- define "linkerd-cni.configData" -}}
{{- $inbound := list
      (.Values.proxyAdminPort | default 4191 | int64 | toString)
      (.Values.proxyControlPort | default 4190 | int64 | toString) }}
{{- $inbound = concat $inbound (include "linkerd-cni.skippedPorts" (dict "name" "ignoreInboundPorts" "value" .Values.ignoreInboundPorts "root" $) | fromJson).items }}
{{- $outbound := (include "linkerd-cni.skippedPorts" (dict "name" "ignoreOutboundPorts" "value" .Values.ignoreOutboundPorts "root" $) | fromJson).items }}
{{- $subnets := (include "linkerd-cni.subnets" .Values.skipSubnets | fromJson).items }}
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
      "iptables-mode" (include "linkerd-cni.iptablesMode" .)
      "ipv6" (eq (include "linkerd-cni.ipv6" .) "true") }}
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
{{- if include "linkerd-cni.ours" . }}
{{- if eq (include "linkerd-cni.ipv6" .) "auto" }}
{{- $_ := set $linkerd "ipv6" "auto" }}
{{- end }}
{{- with .Values.excludeNamespaces }}
{{- $_ := set $linkerd "exclude-namespaces" . }}
{{- end }}
{{- if eq (toString .Values.strictAnnotations) "true" }}
{{- $_ := set $linkerd "strict-annotations" true }}
{{- end }}
{{- $_ := set $linkerd "pod-detection" (.Values.podDetection | default "annotations") }}
{{- $_ := set $linkerd "api-retry-seconds" (.Values.apiRetrySeconds | default 10 | int64) }}
{{- /* The agent's own pod passes whatever the state of the credential. */}}
{{- $_ := set $linkerd "agent-namespace" .Release.Namespace }}
{{- end }}
{{- /* The agent puts the path of the kubeconfig in the placeholder's place. */}}
{{- $plugin := dict
      "name" "linkerd-cni"
      "type" "linkerd-cni"
      "log_level" (.Values.logLevel | default "info")
      "kubernetes" (dict "kubeconfig" "__KUBECONFIG_FILEPATH__")
      "linkerd" $linkerd }}
{{- /* Asks the runtime to hand over the pod's annotations. */}}
{{- if eq (get $linkerd "pod-detection" | toString) "annotations" }}
{{- $_ := set $plugin "capabilities" (dict "io.kubernetes.cri.pod-annotations" true) }}
{{- end -}}
dest_cni_net_dir: {{ include "linkerd-cni.netDir" . | quote }}
dest_cni_bin_dir: {{ include "linkerd-cni.binDir" . | quote }}
cni_network_config: |-
  {{- toPrettyJson $plugin | nindent 2 }}
{{- end }}
