{{/* The image of all containers. */}}

{{/* Tag of the image, with the digest of `image.version` if there is one. */}}
{{- define "linkerd-cni.imageVersion" -}}
{{- include "linkerd-cni.string" ((.Values.image).version | default .Chart.AppVersion) }}
{{- end }}

{{/*
Name of the image without tag. `global.imageRegistry` replaces the registry: the first part of the name
if it has a dot or a port, or is localhost. The path stays, but a path with which the registry ends is
not repeated.
*/}}
{{- define "linkerd-cni.imageName" -}}
{{- $name := (.Values.image).name | default "cr.l5d.io/linkerd/cni-plugin" }}
{{- with (.Values.global).imageRegistry }}
{{- $path := regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $name "" }}
{{- if hasSuffix (printf "/%s" (dir $path)) . }}
{{- $path = base $path }}
{{- end }}
{{- $name = printf "%s/%s" . $path }}
{{- end }}
{{- $name }}
{{- end }}

{{/*
Digest of the chart's own image, which scripts/release writes into a packaged Chart.yaml. An image with
another name or tag has another digest, for example in a mirror.
*/}}
{{- define "linkerd-cni.imageDigest" -}}
{{- if and (not (.Values.image).version) (eq (include "linkerd-cni.imageName" .) "cr.l5d.io/linkerd/cni-plugin") }}
{{- regexFind "sha256:[0-9a-f]{64}" (index .Chart.Annotations "artifacthub.io/images") }}
{{- end }}
{{- end }}

{{/* Image and pull policy of a container. */}}
{{- define "linkerd-cni.image" -}}
{{- $version := include "linkerd-cni.imageVersion" . }}
{{- with include "linkerd-cni.imageDigest" . }}
{{- $version = printf "%s@%s" $version . }}
{{- end -}}
image: {{ printf "%s:%s" (include "linkerd-cni.imageName" .) $version | toYaml }}
imagePullPolicy: {{ (.Values.image).pullPolicy | default "IfNotPresent" }}
{{- end }}

{{/* Fails for upstream's image, whose agent serves no `/ready`, so that its pods would never get ready. */}}
{{- define "linkerd-cni.validateImage" -}}
{{- $version := include "linkerd-cni.imageVersion" . }}
{{- if regexMatch "^v?1[.][0-9]+[.][0-9]+(-(alpha|beta|rc)[.0-9]*)?(@|$)" $version }}
{{- fail (printf "image.version: %s is upstream's image, which has no admin port and would never be ready with this chart's probes; set image.version=\"\" for this chart's image, %s, or keep upstream's chart (helm rollback returns to it)" $version .Chart.AppVersion) }}
{{- end }}
{{- end }}
