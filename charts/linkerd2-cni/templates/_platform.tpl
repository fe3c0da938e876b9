{{/*
Puts the values of platforms/<platform>.yaml in the place of those that were left
at their defaults. Each template that reads values begins with it; again does no harm.
*/}}
{{- define "linkerd-cni.platform" -}}
{{- with .Values.platform }}
{{- /* The defaults that a platform changes; all others are empty. */}}
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
