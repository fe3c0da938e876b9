{{/* Fails for a name that other charts use. The schema rejects all other unknown names. */}}
{{- define "linkerd-cni.validateNames" -}}
{{- $renamed := dict
      "image.repository" "image.name"
      "image.registry" "image.name, or global.imageRegistry of a parent chart"
      "image.tag" "image.version"
      "image.digest" "image.version, as TAG@sha256:DIGEST"
      "ipv6" "disableIPv6, which may be auto"
      "affinity" "nodeAffinity"
      "resources.limits" "resources.cpu.limit and resources.memory.limit"
      "resources.requests" "resources.cpu.request and resources.memory.request"
      "repairController.resources.limits" "repairController.resources.cpu.limit and repairController.resources.memory.limit"
      "repairController.resources.requests" "repairController.resources.cpu.request and repairController.resources.memory.request" }}
{{- range $path, $name := $renamed }}
{{- $value := $.Values }}
{{- range splitList "." $path }}
{{- $value = get ($value | default dict) . }}
{{- end }}
{{- if $value }}
{{- fail (printf "%s: unknown value; use %s" $path $name) }}
{{- end }}
{{- end }}
{{- end }}
