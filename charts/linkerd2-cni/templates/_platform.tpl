{{/*
Sets unset values to those of platforms/<platform>.yaml. A value is unset if it is null or empty,
which are the chart's defaults of all values that platforms set. The rendering order is undefined,
so each template begins with this. It is idempotent.
*/}}
{{- define "linkerd-cni.platform" -}}
{{- with .Values.platform }}
{{- range $key, $preset := $.Files.Get (printf "platforms/%s.yaml" .) | fromYaml }}
{{- if kindIs "map" $preset }}
{{- $given := deepCopy (get $.Values $key | default dict) }}
{{- range $name, $value := $preset }}
{{- if include "linkerd-cni.unset" (dict "root" $ "value" (get $given $name) "older" false) }}
{{- $_ := set $given $name $value }}
{{- end }}
{{- end }}
{{- $_ := set $.Values $key $given }}
{{- else }}
{{- $older := dict
      "destCNINetDir" "/etc/cni/net.d"
      "destCNIBinDir" "/opt/cni/bin"
      "chained" true
      "iptablesMode" "auto" }}
{{- if include "linkerd-cni.unset" (dict "root" $ "value" (get $.Values $key) "older" (get $older $key)) }}
{{- $_ := set $.Values $key $preset }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
"true" if "value" is unset, else empty. `helm upgrade --reuse-values` replaces the chart's defaults
with those of an older chart, which were not empty: "older". Such values lack newer keys.
*/}}
{{- define "linkerd-cni.unset" -}}
{{- $unset := list "" "<nil>" }}
{{- $values := .root.Values }}
{{- if not (or (hasKey $values "startupProbe") (hasKey $values "extraVolumes") (hasKey $values "commonAnnotations")) }}
{{- $unset = append $unset (toString .older) }}
{{- end }}
{{- if has (toString .value) $unset }}true{{ end }}
{{- end }}
