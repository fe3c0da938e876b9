{{/* Configuration of the plugin, which the agent takes from the ConfigMap. */}}

{{/* A list as comma-separated text. The value is such text, a number, an array or null. */}}
{{- define "linkerd-cni.commaSeparated" -}}
{{- if kindIs "slice" . }}
{{- $items := list }}
{{- range . }}
{{- $items = append $items (include "linkerd-cni.string" .) }}
{{- end }}
{{- join "," $items }}
{{- else if not (kindIs "invalid" .) }}
{{- include "linkerd-cni.string" . }}
{{- end }}
{{- end }}

{{/*
Elements of a comma-separated list without surrounding blanks, as JSON because a define returns
text: {"items": [...]}.
*/}}
{{- define "linkerd-cni.list" -}}
{{- $items := list }}
{{- range splitList "," (include "linkerd-cni.commaSeparated" .) }}
{{- with trim . }}
{{- $items = append $items . }}
{{- end }}
{{- end }}
{{- dict "items" $items | toJson }}
{{- end }}

{{/*
Like linkerd-cni.list, for ports. Argument: a dict with "name" and "value". Fails for a port
above 65535, which the schema cannot express.
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
Elements of a list of ports and ranges as JSON. "items": all elements, split at commas and
otherwise unchanged, as in upstream's chart. "good": elements that the plugin uses, without
signs and leading zeros. "bad": elements that the plugin ignores.
*/}}
{{- define "linkerd-cni.portRanges" -}}
{{- $items := list }}
{{- $good := list }}
{{- $bad := list }}
{{- $text := include "linkerd-cni.commaSeparated" . }}
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
Like linkerd-cni.portRanges, but fails for a list with which no meshed pod starts, and for an array
with an invalid element, as upstream has no arrays. Argument: a dict with "name", "value" and "root".
*/}}
{{- define "linkerd-cni.ignoredPorts" -}}
{{- $json := include "linkerd-cni.portRanges" .value }}
{{- $list := fromJson $json }}
{{- if $list.bad }}
{{- $wanted := "use ports (0-65535) and ranges (lower-upper), comma-separated and without blanks" }}
{{- if kindIs "slice" .value }}
{{- fail (printf "%s: %q is neither a port nor a range; use ports (0-65535) and ranges (lower-upper)" .name (first $list.bad)) }}
{{- end }}
{{- if eq (toString .root.Values.strictAnnotations) "true" }}
{{- fail (printf "%s: %q is neither a port nor a range; %s (strictAnnotations)" .name (first $list.bad) $wanted) }}
{{- end }}
{{- if and (not $list.good) (eq .name "ignoreOutboundPorts") }}
{{- fail (printf "%s: %q is neither a port nor a range, and the list has no valid element, so no meshed pod would start (upstream's plugin fails, too); %s" .name (first $list.bad) $wanted) }}
{{- end }}
{{- end }}
{{- $json }}
{{- end }}

{{/* Data of the ConfigMap. Separate from it, so that the DaemonSet can hash the data alone. */}}
{{- define "linkerd-cni.configData" -}}
{{- $values := include "linkerd-cni.values" . | fromJson }}
{{- $inbound := list
      (.Values.proxyAdminPort | default 4191 | int64 | toString)
      (.Values.proxyControlPort | default 4190 | int64 | toString) }}
{{- $inbound = concat $inbound (include "linkerd-cni.ignoredPorts" (dict "name" "ignoreInboundPorts" "value" .Values.ignoreInboundPorts "root" $) | fromJson).items }}
{{- $outbound := (include "linkerd-cni.ignoredPorts" (dict "name" "ignoreOutboundPorts" "value" .Values.ignoreOutboundPorts "root" $) | fromJson).items }}
{{- $redirected := list }}
{{- range (include "linkerd-cni.ports" (dict "name" "portsToRedirect" "value" .Values.portsToRedirect) | fromJson).items }}
{{- $redirected = append $redirected (int64 .) }}
{{- end }}
{{- /* `simulate` is a constant of upstream's chart, too. The plugin accepts no other value. */}}
{{- $linkerd := dict
      "incoming-proxy-port" (.Values.inboundProxyPort | default 4143 | int64)
      "outgoing-proxy-port" (.Values.outboundProxyPort | default 4140 | int64)
      "proxy-uid" (.Values.proxyUID | default 2102 | int64)
      "ports-to-redirect" $redirected
      "inbound-ports-to-ignore" $inbound
      "simulate" false
      "use-wait-flag" (eq (toString .Values.useWaitFlag) "true")
      "iptables-mode" $values.iptablesMode
      "ipv6" (eq (include "linkerd-cni.ipv6" .) "true") }}
{{- /* `default` would treat group 0 as unset. */}}
{{- if not (kindIs "invalid" .Values.proxyGID) }}
{{- if ge (int64 .Values.proxyGID) 0 }}
{{- $_ := set $linkerd "proxy-gid" (int64 .Values.proxyGID) }}
{{- end }}
{{- end }}
{{- if $outbound }}
{{- $_ := set $linkerd "outbound-ports-to-ignore" $outbound }}
{{- end }}
{{- range $list := list
      (dict "key" "subnets-to-ignore" "value" .Values.skipSubnets)
      (dict "key" "inbound-subnets-to-ignore" "value" .Values.skipInboundSubnets)
      (dict "key" "outbound-subnets-to-ignore" "value" .Values.skipOutboundSubnets) }}
{{- with (include "linkerd-cni.list" $list.value | fromJson).items }}
{{- $_ := set $linkerd $list.key . }}
{{- end }}
{{- end }}
{{- if eq (include "linkerd-cni.ipv6" .) "auto" }}
{{- $_ := set $linkerd "ipv6" "auto" }}
{{- end }}
{{- with .Values.excludeNamespaces }}
{{- $_ := set $linkerd "exclude-namespaces" . }}
{{- end }}
{{- if eq (toString .Values.strictAnnotations) "true" }}
{{- $_ := set $linkerd "strict-annotations" true }}
{{- end }}
{{- if eq (toString .Values.strictProxyUser) "true" }}
{{- $_ := set $linkerd "strict-proxy-user" true }}
{{- end }}
{{- /* The default is the plugin's, too. */}}
{{- if not (has (toJson .Values.sandboxedRuntimeClasses) (list "null" `["gvisor","kata","runsc"]`)) }}
{{- $_ := set $linkerd "sandboxed-runtime-classes" .Values.sandboxedRuntimeClasses }}
{{- end }}
{{- $_ := set $linkerd "api-retry-seconds" (.Values.apiRetrySeconds | default 10 | int64) }}
{{- /* The plugin skips the agent's pods, which install the credential, without an API request. */}}
{{- $_ := set $linkerd "agent-namespace" .Release.Namespace }}
{{- /* The agent replaces the placeholder with the path of the kubeconfig. The capability requests
the pod's annotations from the container runtime. */}}
{{- $plugin := dict
      "name" "linkerd-cni"
      "type" "linkerd-cni"
      "log_level" (.Values.logLevel | default "info")
      "kubernetes" (dict "kubeconfig" "__KUBECONFIG_FILEPATH__")
      "linkerd" $linkerd
      "capabilities" (dict "io.kubernetes.cri.pod-annotations" true) }}
dest_cni_net_dir: {{ include "linkerd-cni.netDir" . | quote }}
dest_cni_bin_dir: {{ include "linkerd-cni.binDir" . | quote }}
cni_network_config: |-
  {{- toPrettyJson $plugin | nindent 2 }}
{{- end }}
