{{/* The image of all containers. */}}

{{/* Tag of the image, with the digest of `image.version` if there is one. */}}
{{- define "linkerd-cni.imageVersion" -}}
{{- include "linkerd-cni.string" ((.Values.image).tag | default (.Values.image).version | default .Chart.AppVersion) }}
{{- end }}

{{/*
Name of the image without tag. `image.registry` replaces the registry: the first part of the name if
it has a dot or a port, or is localhost. The path stays, but a path with which `image.registry` ends
is not repeated.
*/}}
{{- define "linkerd-cni.imageName" -}}
{{- $name := (.Values.image).repository | default (.Values.image).name | default "cr.l5d.io/linkerd/cni-plugin" }}
{{- with (.Values.image).registry | default (.Values.global).imageRegistry }}
{{- $path := regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $name "" }}
{{- if hasSuffix (printf "/%s" (dir $path)) . }}
{{- $path = base $path }}
{{- end }}
{{- $name = printf "%s/%s" . $path }}
{{- end }}
{{- $name }}
{{- end }}

{{/*
Digest of the image: that of the value, else that which scripts/release writes into a packaged Chart.yaml. An image
with another name or tag has another digest, for example in a mirror.
*/}}
{{- define "linkerd-cni.imageDigest" -}}
{{- $image := .Values.image | default dict }}
{{- if $image.digest }}
{{- $image.digest }}
{{- else if and (not ($image.tag | default $image.version)) (eq (include "linkerd-cni.imageName" .) "cr.l5d.io/linkerd/cni-plugin") }}
{{- regexFind "sha256:[0-9a-f]{64}" (index .Chart.Annotations "artifacthub.io/images") }}
{{- end }}
{{- end }}

{{/* Image and pull policy of a container. */}}
{{- define "linkerd-cni.image" -}}
{{- $version := include "linkerd-cni.imageVersion" . }}
{{- with include "linkerd-cni.imageDigest" . }}
{{- $version = printf "%s@%s" (splitList "@" $version | first) . }}
{{- end -}}
image: {{ printf "%s:%s" (include "linkerd-cni.imageName" .) $version | toYaml }}
imagePullPolicy: {{ (.Values.image).pullPolicy | default "IfNotPresent" }}
{{- end }}

{{/* Fails for values of the image that contradict each other. */}}
{{- define "linkerd-cni.validateImage" -}}
{{- $image := .Values.image | default dict }}
{{- $version := include "linkerd-cni.imageVersion" . }}
{{- with $image.repository }}
{{- if not (has ($image.name | default .) (list . "cr.l5d.io/linkerd/cni-plugin")) }}
{{- fail (printf "image.repository: image.name is set, too, to %s; set one of them" $image.name) }}
{{- end }}
{{- end }}
{{- if and $image.tag $image.version (ne $version (include "linkerd-cni.string" $image.version)) }}
{{- fail (printf "image.tag: image.version is set, too, to %s; set one of them" (include "linkerd-cni.string" $image.version)) }}
{{- end }}
{{- /* Upstream's agent serves no `/ready`, so its pods would never get ready. */}}
{{- if regexMatch "^v?1[.][0-9]+[.][0-9]+(-(alpha|beta|rc)[.0-9]*)?(@|$)" $version }}
{{- $key := ternary "image.tag" "image.version" (not (empty $image.tag)) }}
{{- fail (printf "%[1]s: %[2]s is upstream's image, which has no admin port and would never be ready with this chart's probes; set %[1]s=\"\" for this chart's image, %[3]s, or keep upstream's chart (helm rollback returns to it)" $key $version .Chart.AppVersion) }}
{{- end }}
{{- if and $image.digest (contains "@" $version) }}
{{- fail "image.digest: image.version already has a digest" }}
{{- end }}
{{- end }}
