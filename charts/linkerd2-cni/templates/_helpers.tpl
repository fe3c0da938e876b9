{{/*
Helpers that several templates use. A value can be null, or missing after `helm upgrade --reuse-values` from an older
chart. So every template reads nested values in parentheses and with a default.
*/}}

{{/*
All values as JSON, without null fields. An unset value (null or an empty string) gets the value of
platforms/<platform>.yaml, or else the default below. The templates read every value that a platform may set from here.
After `helm upgrade --reuse-values` from upstream's chart, which has no `admissionPolicy`, upstream's default directories
also count as unset.
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
{{- with ($values.affinity).nodeAffinity }}
{{- $_ := set $values "nodeAffinity" (mustMergeOverwrite (deepCopy ($values.nodeAffinity | default dict)) (deepCopy .)) }}
{{- end }}
{{- with $preset.nodeAffinity }}
{{- /* Each required term gets the expressions of the platform's only term. A term without expressions and fields
matches no node, and stays so. */}}
{{- $key := "requiredDuringSchedulingIgnoredDuringExecution" }}
{{- $required := get . $key }}
{{- $expressions := (first $required.nodeSelectorTerms).matchExpressions }}
{{- $affinity := deepCopy $values.nodeAffinity }}
{{- if not (get $affinity $key).nodeSelectorTerms }}{{ $_ := set $affinity $key $required }}{{ end }}
{{- range (get $affinity $key).nodeSelectorTerms }}
{{- if and (or .matchExpressions .matchFields) (ne (toJson .matchExpressions) (toJson $expressions)) }}
{{- $_ := set . "matchExpressions" (concat (.matchExpressions | default list) $expressions) }}
{{- end }}
{{- end }}
{{- $_ := set $values "nodeAffinity" $affinity }}
{{- end }}
{{- (include "linkerd-cni.withoutNulls" $values | fromJson).value | toJson }}
{{- end }}

{{/*
Labels and annotations of an object. Argument: a dict with "root", and optionally "labels" and "annotations" of this
object. The labels that select the chart's objects win over all others.
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

{{/* Merges a list of maps into one map of strings, without nulls. A later map wins. Renders nothing for an empty map. */}}
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
A value without the null fields of its maps, as JSON with the key `value`. Terraform's `optional()` writes null for each
field that is not set, and Argo CD would show such a field as a difference.
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

{{/* Tag of the image, with the digest if `image.version` has one. The value may be a number. */}}
{{- define "linkerd-cni.imageVersion" -}}
{{- (.Values.image).version | default .Chart.AppVersion | toJson | trimAll "\"" }}
{{- end }}

{{/*
Image and pull policy of a container. `global.imageRegistry` replaces the registry, which is the first part of the name
if that part has a dot or a port, or is localhost. The path of the name stays, and is not repeated if the registry ends
with it. scripts/release writes the digest of the chart's own image into the packaged Chart.yaml. The digest also applies
to a mirror of the registry, but not to an image with another name or tag.
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
Value of the key `imagePullSecrets`, or empty. The ServiceAccount has these secrets, too. The pods have them so that
adding a secret replaces pods whose image cannot be pulled.
*/}}
{{- define "linkerd-cni.imagePullSecrets" -}}
{{- $secrets := list }}
{{- range concat ((.Values.global).imagePullSecrets | default list) (.Values.imagePullSecrets | default list) }}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) }}
{{- end }}
{{- with uniq $secrets }}{{ toYaml . }}{{ end }}
{{- end }}

{{/*
Value of the key `resources` of a container. Argument: the chart value, such as `{cpu: {limit: 1}}`. With a limit there is
no default request of the same kind, because Kubernetes then uses the limit. The default request has room for the two
programs of the agent's container, agent and plugin, which use about 4 MiB each.
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

{{/* Mode of the repair controller. Without security context it lacks the capabilities that enter pods. */}}
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
Directory of the node to mount for the CNI directory ".". A directory `current` is a link, and an upgrade of the node
changes its target (`snap refresh` in /var/snap/NAME, k3s in /var/lib/rancher/k3s/data). A mount follows a link only
once, so the pods mount the parent of the link.
*/}}
{{- define "linkerd-cni.mountedDir" -}}
{{- regexReplaceAll "^(.+?)/current(/.*)?$" . "${1}" }}
{{- end }}

{{/*
Path at which "linkerd-cni.mountedDir" is mounted. The parent of a snap's link contains volumes of pods. When the node
unmounts such a volume, the container must not keep it mounted.
*/}}
{{- define "linkerd-cni.mountPath" -}}
{{- $dir := include "linkerd-cni.mountedDir" . -}}
mountPath: /host{{ $dir }}
{{- if and (ne $dir .) (hasPrefix "/var/snap/" $dir) }}
mountPropagation: HostToContainer
{{- end }}
{{- end }}

{{/* Elements of a list, as a JSON array. The value is a comma-separated text, a number, an array or null. */}}
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

{{/* Elements of a list of ports and ranges that the plugin ignores because they are invalid, as a JSON array. */}}
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
Parts of every ValidatingAdmissionPolicy. The match condition limits the policy, and the failures of its evaluation, to
the ServiceAccount of the pods. The API server writes the node into each token that is bound to a pod.
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
API version of MutatingAdmissionPolicies. Fails if the API server serves none. `helm template` knows no API of a cluster:
then the version of Kubernetes decides.
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
{{- $found | required (printf "networkAttachmentDefinition.annotatePods: Kubernetes %s does not serve MutatingAdmissionPolicies; use 1.36, or 1.34 with the feature gate MutatingAdmissionPolicy and the API admissionregistration.k8s.io/v1beta1, or annotate each meshed workload yourself; helm template and scripts/install-cni do not know the cluster: add --kube-version" .Capabilities.KubeVersion.Version) }}
{{- end }}

{{/* Account, nodes and security context of the pods of `helm test`. */}}
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

{{/* Security context that the Pod Security level "restricted" requires: meshed pods need no privileges. */}}
{{- define "linkerd-cni.testSecurityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- end }}
