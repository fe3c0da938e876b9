{{/*
Helpers of several templates. A value can be missing (`helm upgrade --reuse-values` from an older chart) or null. So
every read of a nested value is in parentheses and has a default.
*/}}

{{/*
The values as JSON, without null fields, and with those of platforms/<platform>.yaml, or these defaults, in place of
unset ones. A value is unset if it is null or empty, which are the chart's defaults of all values that platforms set.
`helm upgrade --reuse-values` replaces these defaults with upstream's. Upstream's values lack `admissionPolicy`.
*/}}
{{- define "linkerd-cni.values" -}}
{{- $values := dict
      "chained" true
      "destCNIBinDir" "/opt/cni/bin"
      "destCNINetDir" "/etc/cni/net.d"
      "iptablesMode" "auto"
      "networkAttachmentDefinition" (dict "enabled" false)
      "openshift" (dict "enabled" false)
      "resourceQuota" (dict "enabled" false) }}
{{- $unset := list "" "<nil>" }}
{{- if not (hasKey .Values "admissionPolicy") }}
{{- $unset = concat $unset (list "/etc/cni/net.d" "/opt/cni/bin") }}
{{- end }}
{{- $preset := dict }}
{{- with .Values.platform }}
{{- $preset = $.Files.Get (printf "platforms/%s.yaml" .) | fromYaml }}
{{- $values = mustMergeOverwrite $values (deepCopy $preset) }}
{{- end }}
{{- range $key, $given := .Values }}
{{- if kindIs "map" (get $values $key) }}
{{- range $name, $setting := $given }}
{{- if not (has (toString $setting) $unset) }}{{ $_ := set (get $values $key) $name $setting }}{{ end }}
{{- end }}
{{- else if not (has (toString $given) $unset) }}
{{- $_ := set $values $key $given }}
{{- end }}
{{- end }}
{{- with $preset.nodeAffinity }}
{{- $_ := set $values "nodeAffinity" (include "linkerd-cni.nodeAffinity" (list $values.nodeAffinity .) | fromJson) }}
{{- end }}
{{- (include "linkerd-cni.withoutNulls" $values | fromJson).value | toJson }}
{{- end }}

{{/*
A node affinity with that of a platform, as JSON. The platform's has one required term, whose expressions each other
required term gets, too. A term without expressions and fields matches no node, and stays so.
*/}}
{{- define "linkerd-cni.nodeAffinity" -}}
{{- $key := "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- $affinity := first . | deepCopy }}
{{- $required := get (last .) $key }}
{{- $platform := first $required.nodeSelectorTerms }}
{{- $terms := list }}
{{- range (get $affinity $key | default dict).nodeSelectorTerms }}
{{- if and (or .matchExpressions .matchFields) (ne (toJson .) (toJson $platform)) }}
{{- $_ := set . "matchExpressions" (concat (.matchExpressions | default list) $platform.matchExpressions) }}
{{- end }}
{{- $terms = append $terms . }}
{{- end }}
{{- $_ := set $affinity $key (ternary (dict "nodeSelectorTerms" $terms) $required (gt (len $terms) 0)) }}
{{- $affinity | toJson }}
{{- end }}

{{/*
Labels and annotations of an object, the latter only if there are any. Argument: a dict with "root" and optionally
"labels" and "annotations" of this object. The labels that select the chart's objects win over all others.
*/}}
{{- define "linkerd-cni.metadata" -}}
{{- $labels := dict
      "app.kubernetes.io/component" "cni"
      "app.kubernetes.io/instance" .root.Release.Name
      "app.kubernetes.io/managed-by" .root.Release.Service
      "app.kubernetes.io/part-of" "linkerd"
      "app.kubernetes.io/version" .root.Chart.AppVersion
      "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
{{- $fixed := dict "app.kubernetes.io/name" "linkerd-cni" "linkerd.io/cni-resource" "true" }}
{{- $common := omit (.root.Values.commonLabels | default dict) "k8s-app" -}}
labels:
  {{- include "linkerd-cni.strings" (list $labels $common .labels $fixed) | nindent 2 }}
{{- with include "linkerd-cni.strings" (list .root.Values.commonAnnotations .annotations) }}
annotations:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Maps as one map with strings as values, or empty. A later map wins. Nulls are ignored. */}}
{{- define "linkerd-cni.strings" -}}
{{- $strings := dict }}
{{- range . }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $strings $key (ternary $value (toJson $value) (kindIs "string" $value)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with $strings }}{{ toYaml . }}{{ end }}
{{- end }}

{{/*
A value without the null fields of its maps, as JSON with the key `value`. Terraform's `optional()` writes null for
each field of an object that is not set, and Argo CD would show such a field as a difference.
*/}}
{{- define "linkerd-cni.withoutNulls" -}}
{{- $result := . }}
{{- if kindIs "map" . }}
{{- $result = dict }}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- $_ := set $result $key (include "linkerd-cni.withoutNulls" $value | fromJson).value }}
{{- end }}
{{- end }}
{{- else if kindIs "slice" . }}
{{- $result = list }}
{{- range . }}
{{- $result = append $result (include "linkerd-cni.withoutNulls" . | fromJson).value }}
{{- end }}
{{- end }}
{{- dict "value" $result | toJson }}
{{- end }}

{{/* Name of the ServiceAccount of the pods. */}}
{{- define "linkerd-cni.serviceAccount" -}}
{{- (.Values.serviceAccount).name | default "linkerd-cni" }}
{{- end }}

{{/* The binding's subject: the ServiceAccount of the pods. */}}
{{- define "linkerd-cni.subject" -}}
- kind: ServiceAccount
  name: {{ include "linkerd-cni.serviceAccount" . | toYaml }}
  namespace: {{ toYaml .Release.Namespace }}
{{- end }}

{{/* Tag of the image, with the digest of `image.version` if there is one. A number may be a tag. */}}
{{- define "linkerd-cni.imageVersion" -}}
{{- (.Values.image).version | default .Chart.AppVersion | toJson | trimAll "\"" }}
{{- end }}

{{/*
Image and pull policy of a container. `global.imageRegistry` replaces the registry: the first part of the name if
it has a dot or a port, or is localhost. The path stays, but a path with which the registry ends is not repeated.
scripts/release writes the digest of the chart's own image into the packaged Chart.yaml. A mirror of the registry has the
same digest, an image with another name or tag has another one.
*/}}
{{- define "linkerd-cni.image" -}}
{{- $own := "cr.l5d.io/linkerd/cni-plugin" }}
{{- $name := (.Values.image).name | default $own }}
{{- $digest := "" }}
{{- if and (not (.Values.image).version) (eq $name $own) }}
{{- $digest = regexFind "@sha256:[0-9a-f]{64}" (index .Chart.Annotations "artifacthub.io/images") }}
{{- end }}
{{- with (.Values.global).imageRegistry }}
{{- $path := regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $name "" }}
{{- $name = printf "%s/%s" . (ternary (base $path) $path (hasSuffix (printf "/%s" (dir $path)) .)) }}
{{- end -}}
image: {{ printf "%s:%s%s" $name (include "linkerd-cni.imageVersion" .) $digest | toYaml }}
imagePullPolicy: {{ (.Values.image).pullPolicy | default "IfNotPresent" }}
{{- end }}

{{/*
Value of the key `imagePullSecrets`, or empty. The pods have it besides their ServiceAccount, so that a secret that is added
replaces pods whose image cannot be pulled.
*/}}
{{- define "linkerd-cni.imagePullSecrets" -}}
{{- $secrets := list }}
{{- range concat ((.Values.global).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) }}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- with uniq $secrets }}{{ toYaml . }}{{ end }}
{{- end }}

{{/*
Value of the key `resources` of a container. Argument: the value, such as `{cpu: {limit: 1}}`. A default request gives way
to a limit of the same kind, which is the request then. Each program uses about 4 MiB, and in the agent's container
the plugin of the self-test as much.
*/}}
{{- define "linkerd-cni.resources" -}}
{{- $limits := dict }}
{{- $requests := dict }}
{{- $defaults := dict "cpu" "10m" "memory" "16Mi" }}
{{- range $kind := list "cpu" "memory" "ephemeral-storage" }}
{{- $bounds := get ($ | default dict) $kind | default dict }}
{{- if not (has (toString $bounds.limit) (list "" "<nil>")) }}
{{- $_ := set $limits $kind $bounds.limit }}
{{- end }}
{{- if not (has (toString $bounds.request) (list "" "<nil>")) }}
{{- $_ := set $requests $kind $bounds.request }}
{{- else if and (hasKey $defaults $kind) (not (hasKey $limits $kind)) }}
{{- $_ := set $requests $kind (get $defaults $kind) }}
{{- end }}
{{- end }}
{{- with $limits }}
limits:
  {{- include "linkerd-cni.strings" (list .) | nindent 2 }}
{{- end }}
{{- with $requests }}
requests:
  {{- include "linkerd-cni.strings" (list .) | nindent 2 }}
{{- end }}
{{- end }}

{{/* "true" if the repair controller runs, else empty. */}}
{{- define "linkerd-cni.repairs" -}}
{{- if ne (toString (.Values.repairController).enabled) "false" }}true{{ end }}
{{- end }}

{{/* Mode of the repair controller. Without security context it has no capability to enter pods. */}}
{{- define "linkerd-cni.repairMode" -}}
{{- $default := ternary "delete" "in-place" (eq (toString (.Values.repairController).enableSecurityContext) "false") }}
{{- (.Values.repairController).mode | default $default }}
{{- end }}

{{/* "true" if the repair controller enters pods' network namespaces, else empty. */}}
{{- define "linkerd-cni.repairEntersPods" -}}
{{- $audits := gt ((.Values.repairController).auditIntervalSeconds | default 0 | int64) 0 }}
{{- if and (include "linkerd-cni.repairs" .) (or $audits (eq (include "linkerd-cni.repairMode" .) "in-place")) }}true{{ end }}
{{- end }}

{{/*
Directory of the node that is mounted for the CNI directory ".". A directory `current` is a link, which an upgrade sets
to the new version, as `snap refresh` does in /var/snap/NAME and k3s in /var/lib/rancher/k3s/data. A mount follows a link
only once, so the parent of the link is mounted.
*/}}
{{- define "linkerd-cni.mountedDir" -}}
{{- regexReplaceAll "^(.+?)/current(/.*)?$" . "${1}" }}
{{- end }}

{{/*
Path of the mount of "linkerd-cni.mountedDir". The parent of a snap's link contains volumes of pods, which the
container must not keep mounted after the node has unmounted them.
*/}}
{{- define "linkerd-cni.mountPath" -}}
{{- $dir := include "linkerd-cni.mountedDir" . -}}
mountPath: /host{{ $dir }}
{{- if and (ne $dir .) (hasPrefix "/var/snap/" $dir) }}
mountPropagation: HostToContainer
{{- end }}
{{- end }}

{{/* Elements of a comma-separated list, as a JSON array. The value is such text, a number, an array or null. */}}
{{- define "linkerd-cni.elements" -}}
{{- $elements := list }}
{{- range ternary . (list .) (kindIs "slice" .) }}
{{- if not (kindIs "invalid" .) }}
{{- $elements = append $elements (ternary . (toJson .) (kindIs "string" .)) }}
{{- end }}
{{- end }}
{{- $text := join "," $elements }}
{{- ternary list (splitList "," $text) (empty (trim $text)) | toJson }}
{{- end }}

{{/* The ones of these ports and ranges that the plugin ignores, as a JSON array. */}}
{{- define "linkerd-cni.invalidPorts" -}}
{{- $invalid := list }}
{{- range . }}
{{- $ends := splitList "-" . }}
{{- $isRange := regexMatch "^[+]?[0-9]+(-[+]?[0-9]+)?$" . }}
{{- if not (and $isRange (le (first $ends | float64) (last $ends | float64)) (le (last $ends | float64) 65535.0)) }}
{{- $invalid = append $invalid . }}
{{- end }}
{{- end }}
{{- $invalid | toJson }}
{{- end }}

{{/* "true" if admission policies limit the agent's permissions. Without roles there are no permissions to limit. */}}
{{- define "linkerd-cni.admissionPolicy" -}}
{{- if not (has "false" (list (toString (.Values.admissionPolicy).enabled) (toString (.Values.rbac).create))) }}true{{ end }}
{{- end }}

{{/*
What the ValidatingAdmissionPolicies have in common: they apply to the ServiceAccount of the pods only, also their
errors. The API server writes the node into each token that is bound to a pod.
*/}}
{{- define "linkerd-cni.admissionAccount" -}}
- name: service-account
  expression: >-
    has(request.userInfo.username) && request.userInfo.username ==
    {{ printf "system:serviceaccount:%s:%s" .Release.Namespace (include "linkerd-cni.serviceAccount" .) | quote }}
{{- end }}
{{- define "linkerd-cni.admissionNode" -}}
- name: node
  expression: request.userInfo.?extra[?"authentication.kubernetes.io/node-name"][?0].orValue("")
{{- end }}
{{- define "linkerd-cni.admissionHasNode" -}}
- expression: variables.node != ""
  reason: Forbidden
  message: >-
    the token names no node: only tokens that are bound to a pod of the DaemonSet linkerd-cni are
    accepted (admissionPolicy.enabled of the chart linkerd2-cni)
{{- end }}

{{/*
Version of the API that serves MutatingAdmissionPolicies, or a failure. Without a cluster, as with `helm template`,
no kind is known, and the version of Kubernetes decides.
*/}}
{{- define "linkerd-cni.mutatingPolicyVersion" -}}
{{- $isKnown := .Capabilities.APIVersions.Has "v1/Pod" }}
{{- $found := "" }}
{{- range $version, $since := dict "v1" ">=1.36.0-0" "v1beta1" ">=1.34.0-0" }}
{{- $version = printf "admissionregistration.k8s.io/%s" $version }}
{{- $has := $.Capabilities.APIVersions.Has (printf "%s/MutatingAdmissionPolicy" $version) }}
{{- if ternary $has (semverCompare $since $.Capabilities.KubeVersion.Version) $isKnown }}
{{- $found = $found | default $version }}
{{- end }}
{{- end }}
{{- $found | required (printf "networkAttachmentDefinition.annotatePods: Kubernetes %s does not serve MutatingAdmissionPolicies; use 1.36, or 1.34 with the feature gate MutatingAdmissionPolicy and the API admissionregistration.k8s.io/v1beta1, or annotate each meshed workload yourself" .Capabilities.KubeVersion.Version) }}
{{- end }}

{{/* Where and as whom the pods of `helm test` run. */}}
{{- define "linkerd-cni.testPod" -}}
{{- with include "linkerd-cni.imagePullSecrets" . -}}
imagePullSecrets:
  {{- . | nindent 2 }}
{{ end -}}
serviceAccountName: {{ include "linkerd-cni.serviceAccount" . | toYaml }}
nodeSelector:
  {{- include "linkerd-cni.strings" (list .Values.nodeSelector (dict "kubernetes.io/os" "linux")) | nindent 2 }}
{{- with (include "linkerd-cni.values" . | fromJson).tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* Image, command and environment of the containers of the meshed test pod. */}}
{{- define "linkerd-cni.testContainer" -}}
{{- include "linkerd-cni.image" . }}
command: [/usr/bin/linkerd2-cni-install, probe]
env:
  # Unique to this pod, and yet the chart renders the same text each time.
  - name: LINKERD_CNI_PROBE_TOKEN
    valueFrom:
      fieldRef:
        fieldPath: metadata.uid
  - name: LINKERD_CNI_PROBE_POD_IPS
    valueFrom:
      fieldRef:
        fieldPath: status.podIPs
{{- end }}

{{/* As the Pod Security level "restricted" requires: meshed pods need no privileges. */}}
{{- define "linkerd-cni.testSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- end }}
