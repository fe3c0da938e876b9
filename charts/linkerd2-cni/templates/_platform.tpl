{{/*
Replaces values that have the chart's defaults with those of platforms/<platform>.yaml. The
rendering order is undefined, so each template begins with this. It is idempotent.
*/}}
{{- define "linkerd-cni.platform" -}}
{{- with .Values.platform }}
{{- /* Defaults that platforms change. All others are empty. */}}
{{- $defaults := dict
      "destCNINetDir" "/etc/cni/net.d"
      "destCNIBinDir" "/opt/cni/bin"
      "chained" true
      "iptablesMode" "auto" }}
{{- range $key, $value := $.Files.Get (printf "platforms/%s.yaml" .) | fromYaml }}
{{- $given := get $.Values $key }}
{{- if kindIs "map" $value }}
{{- $_ := set $.Values $key (merge (deepCopy ($given | default dict)) $value) }}
{{- else if or (not $given) (eq $given (get $defaults $key)) }}
{{- $_ := set $.Values $key $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
