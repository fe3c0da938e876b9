{{/* Names of the values: known, former and unknown. */}}

{{/* Names that the chart knows, by the value that has them. Kubernetes' and open maps are not here. */}}
{{- define "linkerd-cni.names" -}}
"": >-
  adminPort admissionPolicy apiRetrySeconds chained cliVersion cniConfFileName commonAnnotations commonLabels
  destCNIBinDir destCNINetDir disableIPv6 dnsPolicy enablePSP enabled excludeNamespaces extraEnv extraInitContainers
  extraObjects extraVolumeMounts extraVolumes global grafanaDashboard ignoreInboundPorts ignoreOutboundPorts image
  imagePullSecrets inboundProxyPort iptablesMode livenessProbe logFormat logLevel minReadySeconds
  networkAttachmentDefinition networkPolicy nodeAffinity nodeCondition nodeSelector openshift outboundProxyPort ownConfig partials
  platform podAnnotations podLabels podMonitor portsToRedirect priorityClassName privileged prometheusRule
  proxyAdminPort proxyControlPort proxyGID proxyUID rbac readinessProbe repairController requireNetworkPlugins
  resourceQuota resources resyncSeconds revisionHistoryLimit sandboxedRuntimeClasses seLinuxOptions securityContext
  selfTest serviceAccount skipInboundSubnets skipOutboundSubnets skipSubnets startupProbe startupTaint strictAnnotations strictProxyUser
  terminationGracePeriodSeconds tolerations updateStrategy useWaitFlag watchPods
image: name pullPolicy version
networkAttachmentDefinition: annotatePods enabled namespace
podMonitor: annotations enabled interval labels metricRelabelings namespace relabelings scrapeTimeout
prometheusRule: alerts annotations enabled labels namespace runbookURL thresholds
prometheusRule.thresholds: >-
  absentMinutes addFailures contentionMinutes notReadyMinutes strandedPods tokenMinutes versionSkewMinutes
grafanaDashboard: annotations enabled folder labels namespace
repairController: >-
  adminPort auditIntervalSeconds deleteUnmanaged enableSecurityContext enabled extraEnv image livenessProbe logFormat
  logLevel mode ratePerMinute readinessProbe resources
repairController.resources: cpu ephemeral-storage memory
resources: cpu ephemeral-storage memory
updateStrategy: rollingUpdate type
updateStrategy.rollingUpdate: maxSurge maxUnavailable
rbac: create
admissionPolicy: enabled tokenAudiences
serviceAccount: annotations create name
openshift: enabled
resourceQuota: enabled pods
networkPolicy: enabled
{{- end }}

{{/* Names of upstream's older charts, which have no effect. `helm upgrade` carries them over. */}}
{{- define "linkerd-cni.oldNames" -}}
namespace installNamespace linkerdVersion cniPluginImage cniPluginVersion cniResourceLabel cniResourceAnnotation
{{- " " }}createdByAnnotation proxyInjectAnnotation proxyInjectDisabled controllerNamespaceLabel linkerdNamespaceLabel
{{- end }}

{{/* Names that other charts use, and the name of the same value here. */}}
{{- define "linkerd-cni.otherNames" -}}
image.repository: image.name
image.registry: image.name, or global.imageRegistry of a parent chart
image.tag: image.version
image.digest: image.version, as TAG@sha256:DIGEST
ipv6: disableIPv6, which may be auto
affinity: nodeAffinity
{{- range $at := list "" "repairController." }}
{{ $at }}resources.limits: {{ $at }}resources.cpu.limit and {{ $at }}resources.memory.limit
{{ $at }}resources.requests: {{ $at }}resources.cpu.request and {{ $at }}resources.memory.request
{{- end }}
{{- end }}

{{/*
Fails for a name that the chart does not know, with the nearest one. The schema cannot: its message
would list all names.
*/}}
{{- define "linkerd-cni.validateNames" -}}
{{- $others := include "linkerd-cni.otherNames" . | fromYaml }}
{{- range $place, $names := include "linkerd-cni.names" . | fromYaml }}
{{- $names = splitList " " $names }}
{{- $prefix := ternary "" (printf "%s." $place) (empty $place) }}
{{- $given := $.Values }}
{{- range compact (splitList "." $place) }}
{{- $given = get ($given | default dict) . }}
{{- end }}
{{- range $name := keys ($given | default dict) | sortAlpha }}
{{- $path := print $prefix $name }}
{{- $other := get $others $path | default (get $others (lower $path)) }}
{{- if or (has $name $names) (and (empty $place) (has $name (splitList " " (include "linkerd-cni.oldNames" $)))) }}
{{- else if and $other (empty (get $given $name)) }}
{{- else if $other }}
{{- fail (printf "%s: unknown value; use %s" $path $other) }}
{{- else }}
{{- with include "linkerd-cni.nearestName" (dict "name" $name "names" $names) }}
{{- fail (printf "%s: unknown value; did you mean %s%s?" $path $prefix .) }}
{{- end }}
{{- fail (printf "%s: unknown value; `helm show values` lists all" $path) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The one of "names" that shares most pairs of letters with "name", upper case or lower, or empty if
none shares 60 percent.
*/}}
{{- define "linkerd-cni.nearestName" -}}
{{- $wanted := lower .name }}
{{- $pairs := sub (len $wanted) 1 | int }}
{{- $nearest := "" }}
{{- $best := 0 }}
{{- range $name := .names }}
{{- $shared := 0 }}
{{- range until $pairs }}
{{- if contains (substr . (int (add . 2)) $wanted) (lower $name) }}
{{- $shared = add $shared 1 }}
{{- end }}
{{- end }}
{{- /* In percent of the pairs of both names. */}}
{{- $score := div (mul 200 $shared) (max 1 (sub (add $pairs (len $name)) 1)) }}
{{- if and (ge $score 60) (gt $score $best) }}
{{- $nearest = $name }}
{{- $best = $score }}
{{- end }}
{{- end }}
{{- $nearest }}
{{- end }}
