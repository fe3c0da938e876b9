{{/*
The values as JSON, with those of platforms/<platform>.yaml, or these defaults, in place of unset ones. A value
is unset if it is null or empty, which are the chart's defaults of all values that platforms set.
`helm upgrade --reuse-values` replaces these defaults with those of an older chart, which were not empty. Values
of an older chart lack `admissionPolicy`.
*/}}
{{- define "linkerd-cni.values" -}}
{{- $preset := dict
      "chained" true
      "destCNIBinDir" "/opt/cni/bin"
      "destCNINetDir" "/etc/cni/net.d"
      "iptablesMode" "auto"
      "networkAttachmentDefinition" (dict "enabled" false)
      "openshift" (dict "enabled" false)
      "resourceQuota" (dict "enabled" false) }}
{{- $older := ternary dict (deepCopy $preset) (hasKey .Values "admissionPolicy") }}
{{- with .Values.platform }}
{{- $preset = mustMergeOverwrite $preset ($.Files.Get (printf "platforms/%s.yaml" .) | fromYaml) }}
{{- end }}
{{- range $key, $value := .Values }}
{{- if kindIs "map" (get $preset $key) }}
{{- range $name, $setting := $value }}
{{- if not (has (toString $setting) (list "" "<nil>" (dig $key $name "" $older | toString))) }}
{{- $_ := set (get $preset $key) $name $setting }}
{{- end }}
{{- end }}
{{- else if not (and (hasKey $preset $key) (has (toString $value) (list "" "<nil>" (get $older $key | toString)))) }}
{{- $_ := set $preset $key $value }}
{{- end }}
{{- end }}
{{- $preset | toJson }}
{{- end }}
