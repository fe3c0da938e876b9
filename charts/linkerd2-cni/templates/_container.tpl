{{/* Resources, probes, additional variables and volumes of the containers. */}}

{{/*
Resources of a container, or empty, as a key without value would be null. Argument: a dict with
"values", such as `cpu.limit`, and "requests", the default requests. A default gives way to a limit of
the same kind, which is the request then.
*/}}
{{- define "linkerd-cni.resources" -}}
{{- $resources := dict }}
{{- $values := .values | default dict }}
{{- range $kind := list "cpu" "memory" "ephemeral-storage" }}
{{- range $bound := list "limit" "request" }}
{{- $plural := printf "%ss" $bound }}
{{- $given := get (get $values $kind | default dict) $bound }}
{{- $quantity := ternary "" (include "linkerd-cni.string" $given) (has (toString $given) (list "" "<nil>")) }}
{{- if and (eq $bound "request") (not $quantity) (not (hasKey (get $resources "limits" | default dict) $kind)) }}
{{- $quantity = get ($.requests | default dict) $kind }}
{{- end }}
{{- if $quantity }}
{{- $_ := set $resources $plural (merge (dict $kind $quantity) (get $resources $plural | default dict)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with $resources -}}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Default requests of a container. Each program uses about 4 MiB, and in
the agent's container the plugin of the self-test as much.
*/}}
{{- define "linkerd-cni.defaultRequests" -}}
cpu: 10m
memory: 16Mi
{{- end }}

{{/* A probe with the fields of "values". Argument: a dict with "probe" as YAML and "values". */}}
{{- define "linkerd-cni.probe" -}}
{{- $probe := fromYaml .probe }}
{{- range $key, $value := .values }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $probe $key (int64 $value) }}
{{- end }}
{{- end }}
{{- toYaml $probe }}
{{- end }}

{{/*
Additional environment variables, or empty. Argument: a dict with "name" and "values" of the list,
and "env" of the container as YAML. Fails for duplicate names, which server-side apply rejects.
*/}}
{{- define "linkerd-cni.extraEnv" -}}
{{- $names := list }}
{{- range fromYamlArray .env }}
{{- $names = append $names .name }}
{{- end }}
{{- range .values }}
{{- if has .name $names }}
{{- fail (printf "%s: %s is set by the chart or named twice" $.name .name) }}
{{- end }}
{{- $names = append $names .name }}
{{- end }}
{{- with .values }}{{ toYaml . }}{{ end }}
{{- end }}

{{/*
The items of `extraVolumes` or `extraVolumeMounts`, or empty. Argument: a dict with "name" and
"values" of the list, "own", the chart's items as YAML, and "key", by which items are unique.
*/}}
{{- define "linkerd-cni.extraItems" -}}
{{- $taken := list }}
{{- range fromYamlArray .own }}
{{- $taken = append $taken (get . $.key | toString | trimSuffix "/") }}
{{- end }}
{{- range .values }}
{{- $item := get . $.key | toString | trimSuffix "/" }}
{{- if has $item $taken }}
{{- fail (printf "%s: %s %s is set by the chart or named twice" $.name $.key $item) }}
{{- end }}
{{- $taken = append $taken $item }}
{{- end }}
{{- with .values }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Volumes that the chart sets. */}}
{{- define "linkerd-cni.volumes" -}}
{{- if not (include "linkerd-cni.sameDir" .) }}
- name: cni-bin-dir
  hostPath:
    path: {{ include "linkerd-cni.binDir" . | include "linkerd-cni.mountedDir" }}
{{- end }}
- name: cni-net-dir
  hostPath:
    path: {{ include "linkerd-cni.netDir" . | include "linkerd-cni.mountedDir" }}
- name: cni-run-dir
  hostPath:
    path: /run/linkerd-cni
    type: DirectoryOrCreate
{{- if and (include "linkerd-cni.repairs" .) (include "linkerd-cni.repairEntersPods" .) }}
- name: netns
  hostPath:
    # Not /var/run/netns: containerd would treat the symbolic link as a mount of /.
    path: /run/netns
- name: cni-cache
  hostPath:
    path: /var/lib/cni
{{- end }}
- name: linkerd-tmp-dir
  emptyDir: {}
{{- end }}

{{/* Mounts of the agent that the chart sets. */}}
{{- define "linkerd-cni.agentMounts" -}}
{{- if not (include "linkerd-cni.sameDir" .) }}
- name: cni-bin-dir
  {{- include "linkerd-cni.binDir" . | include "linkerd-cni.mountPath" | nindent 2 }}
{{- end }}
- name: cni-net-dir
  {{- include "linkerd-cni.netDir" . | include "linkerd-cni.mountPath" | nindent 2 }}
- name: cni-run-dir
  mountPath: /run/linkerd-cni
- name: linkerd-tmp-dir
  mountPath: /tmp
{{- end }}

{{/* Fails for a mount of a volume that the pods do not have. */}}
{{- define "linkerd-cni.validateMounts" -}}
{{- $volumes := list }}
{{- range concat (include "linkerd-cni.volumes" . | fromYamlArray) (.Values.extraVolumes | default list) }}
{{- $volumes = append $volumes .name }}
{{- end }}
{{- range .Values.extraVolumeMounts }}
{{- if not (has .name $volumes) }}
{{- fail (printf "extraVolumeMounts: the pods have no volume %s; add it to extraVolumes" .name) }}
{{- end }}
{{- end }}
{{- end }}
